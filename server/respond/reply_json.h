#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "server/respond/reply_shape.h"
#include "server/wire/logprobs.h"

namespace tandem::server {

// Figures of one answer so far, all choices together.
struct ReplyUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;  // of these, thought
};

// The pieces of JSON that bodies and chunks of both routes are made of. Each appends to `out`:
// a stream of many clients is mostly this and the sockets.
class ReplyJson {
 public:
  // Borrows the shape.
  explicit ReplyJson(const ReplyShape& shape);

  const TokenNames& names() const { return names_; }
  // What is the same in all chunks of a stream, or begins the body; up to the list of choices.
  const std::string& head() const { return head_; }

  // Opens a choice.
  void AppendIndex(std::string& out, size_t prompt_idx, int choice) const;
  // Text of a chunk, and of a completion's body.
  void AppendText(std::string& out, std::string_view text) const;
  void AppendFinish(std::string& out, const engine::ChoiceFinished& finished) const;
  // Prompt ids and scores: once per choice in completions, once per answer in chat.
  void AppendPromptExtras(std::string& out, size_t prompt_idx,
                          std::span<const engine::TokenLogprob> scores) const;

 private:
  const ReplyShape& shape_;
  const TokenNames names_;
  const std::string head_;
};

// The members `reasoning_content` and its other name `reasoning`, which half of the clients read.
void AppendReasoning(std::string& out, std::string_view reasoning);
void AppendUsage(std::string& out, const ReplyUsage& usage);
// The message of a chat's body.
void AppendMessage(std::string& out, std::string_view content, std::string_view reasoning);

}  // namespace tandem::server
