#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "server/client/server_client.h"

namespace tandem::server {

// A model's answer, also a part of one.
struct ModelAnswer {
  std::string text;
  std::string reasoning;
  std::string tool_calls;     // a JSON array; empty: none
  std::string finish_reason;  // empty: the answer did not end by itself
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
  double first_token_s = 0;  // until the first text
  double last_token_s = 0;   // until the last one
  int64_t first_tokens = 0;  // tokens that came with the first text
  double total_s = 0;
  bool is_stopped = false;     // the stop was requested
  std::optional<Error> fault;  // why the answer broke off; unset: it did not

  bool is_empty() const { return text.empty() && reasoning.empty() && tool_calls.empty(); }
  // Speed of the generation; includes the prompt if all tokens came at once. 0: unknown.
  double TokensPerSecond() const;
  // One line for people: "24 tokens, 81.2 tokens/s, …".
  std::string Statistics() const;
  // One JSON object for machines.
  std::string ToJson(const std::string& model) const;
};

// Receives the pieces of an answer as they arrive.
struct AnswerSink {
  std::function<void(std::string_view)> on_text;
  std::function<void(std::string_view)> on_reasoning;
};

// Sends a chat request, or with `is_completion` one with a `prompt`, and streams the answer.
// `request` is JSON. Never throws for faults of the server: the answer holds them.
ModelAnswer AskModel(const ServerClient& client, const std::string& request, bool is_completion,
                     const AnswerSink& sink, std::stop_token stop);

}  // namespace tandem::server
