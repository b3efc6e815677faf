#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/ids.h"
#include "engine/chat/answers/answer_parser.h"

namespace tandem::engine {
class Tokenizer;
}

namespace tandem::server {

// All parameters of the answer to one generation request, besides its events.
struct ReplyShape {
  enum class Kind { kChat, kCompletion };
  struct PromptShape {
    std::vector<TokenId> ids;
    std::string text;             // repeated by `echo`
    bool continues_text = false;  // as in the engine request
  };

  Kind kind = Kind::kChat;
  std::string id;  // "chatcmpl-…", "cmpl-…"
  int64_t created = 0;
  std::string model;
  std::string fingerprint;
  std::string request_id;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  int n = 1;              // choices per prompt in the answer
  int n_candidates = 1;   // generated choices per prompt; the answer has the best n
  int top_logprobs = -1;  // -1: no logprobs
  std::optional<int> prompt_logprobs;
  bool echo = false;
  bool skip_special_tokens = true;
  std::vector<TokenId> shown_special_tokens;  // exceptions to skip_special_tokens
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  // Set: a chat whose answer may have thoughts or tool calls besides its content.
  std::optional<engine::AnswerOptions> answer;
  std::vector<TokenId> end_tokens;        // all tokens that end a choice
  std::vector<TokenId> asked_end_tokens;  // subset of end_tokens: the request's stop_token_ids
  // The head of a stream waits for the first event, so that a request refused while queued still
  // gets its own status.
  bool begins_late = false;
  // Called on the answer thread when a prompt has ended, before the answer shows it. `reason` is
  // the finish reason or "error".
  std::function<void(std::string_view reason)> on_prompt_end;
  std::vector<PromptShape> prompts;
  std::shared_ptr<const engine::Tokenizer> tokenizer;  // may be null
  std::shared_ptr<const void> keeps_alive;  // released after the last event: the model's lease
};

}  // namespace tandem::server
