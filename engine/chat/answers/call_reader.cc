#include "engine/chat/answers/call_reader.h"

#include <string_view>
#include <utility>

#include "engine/chat/answers/harmony_reader.h"

namespace tandem::engine {
namespace {

// The text of a call that is kept so that it can become text again.
constexpr size_t kMostCallBytes = size_t{8} << 20;

// Answers without calls.
class TextReader : public AnswerReader {
 public:
  void Read(AnswerInput& input, AnswerWriter& writer) override {
    writer.Text(input.Take(input.text().size()));
    input.Forget();
  }
  void Finish(AnswerInput& input, AnswerWriter& writer, bool) override { Read(input, writer); }
};

}  // namespace

void FinishOpen(AnswerInput& input, AnswerWriter& writer, bool was_cut) {
  if (writer.is_in_call()) {
    // The unread text of a cut call is the beginning of a mark or of a value.
    if (was_cut) return;
    writer.Drop(input.taken());
    input.Forget();
  }
  input.Take(input.text().size());
  writer.Text(input.taken());
  input.Forget();
}

std::unique_ptr<AnswerReader> MakeAnswerReader(const ToolFormat* format) {
  if (format == nullptr) return std::make_unique<TextReader>();
  if (format->style == CallStyle::kHarmony) return std::make_unique<HarmonyReader>();
  return std::make_unique<CallReader>(*format);
}

CallReader::CallReader(const ToolFormat& format)
    : format_(format), state_(format.only_at_beginning ? State::kBeginning : State::kText) {}

void CallReader::Read(AnswerInput& input, AnswerWriter& writer) {
  while (Step(input, writer)) {
  }
  if (state_ == State::kCall && input.taken().size() + input.text().size() > kMostCallBytes) {
    MakeText(input, writer);
    state_ = State::kRest;
    Step(input, writer);
  }
}

void CallReader::Finish(AnswerInput& input, AnswerWriter& writer, bool was_cut) {
  Read(input, writer);
  // The token limit left the beginning of a further call, which is no text.
  const bool is_in_block = state_ == State::kBlock || state_ == State::kCall ||
                           state_ == State::kAfterCall || state_ == State::kAfterSeparator;
  if (was_cut && is_in_block && n_in_block_ > 0) return;
  FinishOpen(input, writer, was_cut);
}

bool CallReader::Step(AnswerInput& input, AnswerWriter& writer) {
  switch (state_) {
    case State::kBeginning:
      return ReadBeginning(input, writer);
    case State::kText:
      return ReadText(input, writer);
    case State::kBlock:
      return ReadBlock(input, writer);
    case State::kCall:
      return ReadCall(input, writer);
    case State::kAfterCall:
      return ReadAfterCall(input, writer);
    case State::kAfterSeparator:
      return ReadAfterSeparator(input, writer);
    case State::kRest:
      break;
  }
  writer.Text(input.Take(input.text().size()));
  input.Forget();
  return false;
}

bool CallReader::ReadBeginning(AnswerInput& input, AnswerWriter& writer) {
  const bool has_text = input.SkipSpace();
  writer.Text(input.taken());
  input.Forget();
  if (!has_text) return false;
  if (!format_.opening.empty()) {
    const AnswerInput::Match match = input.Begins(format_.opening);
    if (match == AnswerInput::Match::kMore) return false;
    if (match == AnswerInput::Match::kYes) {
      input.Take(format_.opening.size());
      state_ = State::kBlock;
      return true;
    }
  }
  const char first = input.text().front();
  const bool may_begin = first == '[' || (first == '{' && format_.style == CallStyle::kJson);
  state_ = may_begin ? State::kBlock : State::kRest;
  return true;
}

bool CallReader::ReadText(AnswerInput& input, AnswerWriter& writer) {
  const AnswerInput::Found found = input.Find({&format_.opening, 1});
  writer.Text(input.Take(found.at));
  input.Forget();
  if (found.mark.empty()) return false;
  input.Take(found.mark.size());
  n_in_block_ = 0;
  state_ = State::kBlock;
  return true;
}

bool CallReader::BeginCall() {
  body_ = MakeCallBody(format_);
  state_ = State::kCall;
  return true;
}

bool CallReader::ReadBlock(AnswerInput& input, AnswerWriter& writer) {
  if (format_.style != CallStyle::kJson) return BeginCall();
  if (!input.SkipSpace()) return false;
  const char first = input.text().front();
  if (first == '{') return BeginCall();
  if (first == '[' && !is_in_list_) {
    is_in_list_ = true;
  } else if (first == ']' && is_in_list_ && n_in_block_ > 0) {
    is_in_list_ = false;
    state_ = State::kAfterCall;
  } else if (first != ',' || !is_in_list_ || n_in_block_ == 0) {
    return MakeText(input, writer);
  }
  input.Take(1);
  if (state_ == State::kAfterCall) input.Forget();
  return true;
}

bool CallReader::ReadCall(AnswerInput& input, AnswerWriter& writer) {
  const CallBody::Status status = body_->Read(input, writer);
  if (status == CallBody::Status::kMore) return false;
  if (status == CallBody::Status::kBad) return MakeText(input, writer);
  input.Forget();
  body_.reset();
  ++n_in_block_;
  state_ = is_in_list_ ? State::kBlock : State::kAfterCall;
  return true;
}

bool CallReader::ReadAfterCall(AnswerInput& input, AnswerWriter& writer) {
  const bool has_mark = !format_.closing.empty() || !format_.separator.empty();
  if (!has_mark) return MakeText(input, writer);
  if (!input.SkipSpace()) return false;
  for (const std::string_view mark : {format_.closing, format_.separator}) {
    if (mark.empty()) continue;
    const AnswerInput::Match match = input.Begins(mark);
    if (match == AnswerInput::Match::kMore) return false;
    if (match == AnswerInput::Match::kNo) continue;
    input.Take(mark.size());
    if (mark == format_.separator) {
      state_ = State::kAfterSeparator;
      return true;
    }
    input.Forget();
    break;
  }
  return MakeText(input, writer);
}

bool CallReader::ReadAfterSeparator(AnswerInput& input, AnswerWriter& writer) {
  if (!input.SkipSpace()) return false;
  if (input.text().front() != '{') return MakeText(input, writer);
  n_in_block_ = 0;
  return BeginCall();
}

bool CallReader::MakeText(AnswerInput& input, AnswerWriter& writer) {
  if (writer.is_in_call()) {
    writer.Drop(input.taken());
  } else {
    writer.Text(input.taken());
  }
  input.Forget();
  body_.reset();
  is_in_list_ = false;
  state_ = text_state();
  return true;
}

}  // namespace tandem::engine
