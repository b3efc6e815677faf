#include "engine/chat/answers/harmony_reader.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace tandem::engine {
namespace {

constexpr std::string_view kRecipient = "to=", kFunctions = "functions.";
// A header names a role, a channel, a recipient and a type.
constexpr size_t kMostHeaderBytes = 1024;
constexpr std::array<std::string_view, 4> kBodyEnds = {kHarmonyEnd, kHarmonyCall, kHarmonyReturn,
                                                       kHarmonyStart};

std::string_view WordAt(std::string_view text, size_t begin) {
  text.remove_prefix(begin);
  return text.substr(0, std::min(text.find_first_of(" \t\r\n<"), text.size()));
}

// The word behind `mark`; empty if the header has none.
std::string_view WordBehind(std::string_view header, std::string_view mark) {
  const size_t at = header.find(mark);
  return at == std::string_view::npos ? std::string_view() : WordAt(header, at + mark.size());
}

}  // namespace

void HarmonyReader::Read(AnswerInput& input, AnswerWriter& writer) {
  bool has_progress = true;
  while (has_progress && !input.text().empty()) {
    switch (state_) {
      case State::kBeginning:
      case State::kBetween:
        has_progress = ReadBeginning(input, writer);
        break;
      case State::kHeader:
        has_progress = ReadHeader(input, writer);
        break;
      case State::kBody:
        has_progress = ReadBody(input, writer);
        break;
    }
  }
}

// Decides whether a header or bare text follows.
bool HarmonyReader::ReadBeginning(AnswerInput& input, AnswerWriter& writer) {
  const bool has_text = input.SkipSpace();
  writer.Text(input.taken());
  input.Forget();
  if (!has_text) return false;
  const std::string_view text = input.text();
  bool may_begin = kRecipient.starts_with(text);
  if (text.starts_with(kRecipient)) {
    state_ = State::kHeader;
    return true;
  }
  for (const std::string_view mark : {kHarmonyStart, kHarmonyChannel, kHarmonyMessage}) {
    const AnswerInput::Match match = input.Begins(mark);
    if (match == AnswerInput::Match::kYes) {
      state_ = State::kHeader;
      return true;
    }
    may_begin = may_begin || match == AnswerInput::Match::kMore;
  }
  if (may_begin) return false;
  state_ = State::kBody;
  kind_ = Kind::kText;
  return true;
}

bool HarmonyReader::ReadHeader(AnswerInput& input, AnswerWriter& writer) {
  const AnswerInput::Found found = input.Find({&kHarmonyMessage, 1});
  const size_t n_bytes = found.mark.empty() ? input.text().size() : found.at + found.mark.size();
  if (found.mark.empty() && n_bytes <= kMostHeaderBytes) return false;
  state_ = State::kBody;
  kind_ = Kind::kText;
  if (n_bytes > kMostHeaderBytes) {
    // No header is that long: text. Its first byte goes now, or its mark would begin it again.
    writer.Text(input.Take(1));
    input.Forget();
    return true;
  }
  BeginBody(input.text().substr(0, found.at), writer);
  input.Take(found.at + found.mark.size());
  if (kind_ != Kind::kCall) input.Forget();
  return true;
}

void HarmonyReader::BeginBody(std::string_view header, const AnswerWriter& writer) {
  std::string_view recipient = WordBehind(header, kRecipient);
  if (recipient.starts_with(kFunctions)) recipient.remove_prefix(kFunctions.size());
  if (!recipient.empty() && writer.MayCall(recipient)) {
    kind_ = Kind::kCall;
    call_.emplace(std::string(recipient));
  } else if (recipient.empty() && WordBehind(header, kHarmonyChannel) == "analysis") {
    kind_ = Kind::kReasoning;
  }
}

bool HarmonyReader::ReadBody(AnswerInput& input, AnswerWriter& writer) {
  if (kind_ == Kind::kCall) return ReadCall(input, writer);
  const AnswerInput::Found found = input.Find(kBodyEnds);
  if (found.at > 0) {
    const std::string_view text = input.Take(found.at);
    kind_ == Kind::kReasoning ? writer.Reasoning(text) : writer.Text(text);
  }
  input.Forget();
  if (found.mark.empty()) return false;
  if (found.mark != kHarmonyStart) {
    input.Take(found.mark.size());
    input.Forget();
  }
  state_ = State::kBetween;
  return true;
}

// Only control tokens end arguments early, because their strings may spell marks. Text that is not
// the arguments of a call becomes text, with the header before it.
bool HarmonyReader::ReadCall(AnswerInput& input, AnswerWriter& writer) {
  std::vector<std::string_view> ends;
  for (const std::string_view mark : kBodyEnds) {
    if (input.IsToken(mark)) ends.push_back(mark);
  }
  const AnswerInput::Found found = input.Find(ends);
  const CallBody::Status status = call_->Read(input, found.at, writer);
  const bool is_unfinished = status == CallBody::Status::kMore;
  if (is_unfinished && found.mark.empty()) return false;
  if (status != CallBody::Status::kDone && writer.is_in_call()) {
    writer.Drop(input.taken());
  } else if (status == CallBody::Status::kBad) {
    writer.Text(input.taken());
  }
  input.Forget();
  kind_ = Kind::kText;
  return true;
}

void HarmonyReader::Finish(AnswerInput& input, AnswerWriter& writer, bool was_cut) {
  Read(input, writer);
  const bool is_within_message = state_ == State::kBody && kind_ == Kind::kReasoning;
  if (is_within_message) {
    writer.Reasoning(input.Take(input.text().size()));
    input.Forget();
  }
  FinishOpen(input, writer, was_cut);
}

}  // namespace tandem::engine
