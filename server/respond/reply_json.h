#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/chat/answers/answer_events.h"
#include "engine/engine.h"
#include "server/respond/reply_shape.h"
#include "server/wire/logprobs.h"

namespace tandem::server {

// Token counts of one answer so far, for all choices together.
struct ReplyUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;            // subset of completion_tokens
  int64_t accepted_prediction_tokens = 0;  // subset of completion_tokens
  int64_t rejected_prediction_tokens = 0;  // wrong guesses; not part of completion_tokens
};

// Writes the pieces of JSON in bodies and chunks of both routes, each appended to `out`. Streams to
// many clients spend most of their time here and in the sockets.
class ReplyJson {
 public:
  // Borrows `shape`.
  explicit ReplyJson(const ReplyShape& shape);

  const TokenNames& names() const { return names_; }
  // The constant start of all chunks of a stream, or of the body, up to the list of choices.
  const std::string& head() const { return head_; }

  // Opens a choice.
  void AppendIndex(std::string& out, size_t prompt_idx, int choice) const;
  // The text of a chunk, or of a completion's body.
  void AppendText(std::string& out, std::string_view text) const;
  // `with_calls`: the choice ends with tool calls, unless the token limit ended it.
  void AppendFinish(std::string& out, const engine::ChoiceFinished& finished,
                    bool with_calls) const;
  // Prompt ids and scores: once per choice in completions, once per answer in chat.
  void AppendPromptExtras(std::string& out, size_t prompt_idx,
                          std::span<const engine::TokenLogprob> scores) const;

 private:
  const ReplyShape& shape_;
  const TokenNames names_;
  const std::string head_;
};

// Appends the members `reasoning_content` and `reasoning`: clients read one or the other.
void AppendReasoning(std::string& out, std::string_view reasoning);
void AppendUsage(std::string& out, const ReplyUsage& usage);

// A tool call of a body.
struct ToolCall {
  int index = 0;  // of the engine's events
  std::string id;
  std::string name;
  std::string arguments;  // of a custom tool: its input
  bool is_custom = false;
};

// Appends the message of a chat's body. The content is null if there are calls and no text.
void AppendMessage(std::string& out, std::string_view content, std::string_view reasoning,
                   std::span<const ToolCall> calls);
// Appends the `delta` of a chunk.
void AppendReasoningDelta(std::string& out, std::string_view reasoning);
void AppendCallBegin(std::string& out, const engine::CallBegin& call);
void AppendCallArguments(std::string& out, const engine::CallArguments& arguments);

}  // namespace tandem::server
