#include "engine/chat/answers/answer_writer.h"

#include <utility>

#include "engine/chat/answers/partial_mark.h"

namespace tandem::engine {
namespace {

constexpr size_t kMostHeldSpace = 4096;

template <class Part>
void AppendText(AnswerEvents& out, std::string_view text) {
  if (text.empty()) return;
  if (out.empty() || !std::holds_alternative<Part>(out.back())) out.push_back(Part{});
  std::get<Part>(out.back()).text += text;
}

}  // namespace

AnswerWriter::AnswerWriter(std::shared_ptr<const DeclaredTools> tools, int max_calls,
                           std::function<std::string()> new_id)
    : tools_(std::move(tools)), max_calls_(max_calls), new_id_(std::move(new_id)) {}

void AnswerWriter::Reasoning(std::string_view text) { AppendText<ReasoningPart>(*out_, text); }

void AnswerWriter::Text(std::string_view text) {
  if (tools_ == nullptr) return AppendText<TextPart>(*out_, text);  // no call needs layout
  const size_t last = text.find_last_not_of(kWhiteSpace);
  if (last != std::string_view::npos || space_.size() + text.size() > kMostHeldSpace) {
    const size_t end = last == std::string_view::npos ? text.size() : last + 1;
    AppendText<TextPart>(*out_, std::exchange(space_, {}));
    AppendText<TextPart>(*out_, text.substr(0, end));
    text.remove_prefix(end);
  }
  space_ += text;
}

bool AnswerWriter::MayCall(std::string_view name) const {
  return tools_ != nullptr && tools_->Has(name);
}

void AnswerWriter::Begin(std::string_view name) {
  before_call_ = std::exchange(space_, {});
  is_in_call_ = true;
  ++n_begun_;
  is_custom_ = tools_->IsCustom(name);
  input_ = CustomInput();
  if (is_muted()) return;
  out_->push_back(CallBegin{n_begun_ - 1, new_id_(), std::string(name), is_custom_});
}

void AnswerWriter::Arguments(std::string_view text) {
  if (!is_custom_) return Input(text);
  Input(input_.Push(text));
}

void AnswerWriter::Input(std::string_view text) {
  if (is_muted() || text.empty()) return;
  auto* last = out_->empty() ? nullptr : std::get_if<CallArguments>(&out_->back());
  if (last == nullptr || last->index != n_begun_ - 1) {
    last =
        &std::get<CallArguments>(out_->emplace_back(CallArguments{n_begun_ - 1, {}, is_custom_}));
  }
  last->text += text;
}

void AnswerWriter::End() {
  is_in_call_ = false;
  if (is_muted()) return;
  has_ended_a_call_ = true;
  out_->push_back(CallEnd{n_begun_ - 1});
}

void AnswerWriter::Drop(std::string_view written) {
  is_in_call_ = false;
  if (is_muted()) return;
  out_->push_back(CallDropped{n_begun_ - 1, before_call_ + std::string(written)});
}

void AnswerWriter::Finish(bool was_cut) {
  const bool is_cut_call = is_in_call_ && was_cut && !is_muted();
  if (n_begun_ == 0) AppendText<TextPart>(*out_, space_);
  space_.clear();
  out_->push_back(AnswerFinish{has_ended_a_call_ || is_cut_call});
}

}  // namespace tandem::engine
