#pragma once

#include <cstdint>
#include <optional>

#include "engine/chat/answers/answer_parser.h"
#include "engine/engine.h"

namespace tandem::server {

// Turns the deltas of one choice into the parts of its answer. One thread at a time.
class ChoiceReader {
 public:
  // Unset options: the whole answer is text.
  explicit ChoiceReader(const std::optional<engine::AnswerOptions>& options);

  engine::AnswerEvents Read(engine::TextDelta& delta);
  // The last parts; AnswerFinish is the last one. `was_cut`: the token limit ended the choice.
  engine::AnswerEvents Finish(bool was_cut);

  // Whether text is held back; its tokens wait with it.
  bool holds() const { return parser_ && parser_->holds(); }
  // The tokens of thoughts read so far.
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  std::optional<engine::AnswerParser> parser_;
  int64_t reasoning_tokens_ = 0;
};

}  // namespace tandem::server
