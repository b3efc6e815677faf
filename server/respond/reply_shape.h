#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/ids.h"
#include "server/respond/reasoning_splitter.h"

namespace tandem::engine {
class Tokenizer;
}

namespace tandem::server {

// All that the answer to one generation request depends on besides the events.
struct ReplyShape {
  enum class Kind { kChat, kCompletion };
  struct PromptShape {
    std::vector<TokenId> ids;
    std::string text;             // what `echo` repeats
    bool continues_text = false;  // as its engine request says
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
  int n_candidates = 1;   // choices per prompt that are generated; the best n are answered
  int top_logprobs = -1;  // -1: no logprobs
  std::optional<int> prompt_logprobs;
  bool echo = false;
  bool skip_special_tokens = true;
  std::vector<TokenId> shown_special_tokens;  // are text all the same
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  std::optional<ReasoningSplitter::State> reasoning;  // set: thoughts are answered apart
  std::vector<TokenId> end_tokens;                    // in effect: what ends a choice
  std::vector<TokenId> asked_end_tokens;              // of these, the request's own stop_token_ids
  // The head of a stream waits for the first event, so that a request which gets no place in time
  // is still refused with a status of its own.
  bool begins_late = false;
  // Called on the connection's strand when a prompt has ended, before that is answered, with the
  // finish reason or "error".
  std::function<void(std::string_view reason)> on_prompt_end;
  std::vector<PromptShape> prompts;
  std::shared_ptr<const engine::Tokenizer> tokenizer;  // may be null
  std::shared_ptr<const void> keeps_alive;  // held until the last event: the model's lease
};

}  // namespace tandem::server
