#include "server/respond/choice_reader.h"

#include <utility>

namespace tandem::server {

ChoiceReader::ChoiceReader(const std::optional<engine::AnswerOptions>& options) {
  if (options) parser_.emplace(*options);
}

engine::AnswerEvents ChoiceReader::Read(engine::TextDelta& delta) {
  if (!parser_) {
    if (delta.text.empty()) return {};
    return {engine::TextPart{std::move(delta.text)}};
  }
  const bool was_thinking = parser_->is_thinking();
  engine::AnswerEvents events = parser_->Push(delta.text, delta.token_ends);
  // The mark that ends a thought does not count as reasoning.
  if (was_thinking && parser_->is_thinking()) {
    reasoning_tokens_ += static_cast<int64_t>(delta.token_ids.size());
  }
  return events;
}

engine::AnswerEvents ChoiceReader::Finish(bool was_cut) {
  if (!parser_) return {engine::AnswerFinish{}};
  return parser_->Finish(was_cut);
}

}  // namespace tandem::server
