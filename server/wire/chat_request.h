#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/wire/generation_fields.h"

namespace tandem::server {

// POST /v1/chat/completions, checked (CONTRACT §8.1, §8.2).
struct ChatRequest {
  // Normalised for templates: roles system, user, assistant, tool; content a string or null; tool
  // call arguments as objects where they are objects.
  std::shared_ptr<const nlohmann::ordered_json> messages;
  std::shared_ptr<const nlohmann::ordered_json> template_kwargs;  // null: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::optional<int64_t> max_tokens;  // unset: the rest of the context
  int top_logprobs = -1;              // -1: no logprobs
  GenerationFields generation;
  std::vector<std::string> ignored;  // top-level names for x-ignored-params
};

// `model` has been read by the caller (an unknown model is reported before any other field).
ChatRequest ParseChatRequest(const nlohmann::ordered_json& body, const ModelLimits& limits);

// The `messages` array alone, checked and normalised; /tokenize takes the same.
std::shared_ptr<const nlohmann::ordered_json> ParseMessages(const nlohmann::ordered_json& messages);

}  // namespace tandem::server
