#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/wire/generation_fields.h"

namespace tandem::server {

// What a chat's prompt is made of: /tokenize and /v1/render take the same fields.
struct ChatPrompt {
  // Normalised for templates: content a string, tool call arguments as objects where they are
  // objects, "developer" as "system" unless the template knows it.
  std::shared_ptr<const nlohmann::ordered_json> messages;
  std::shared_ptr<const nlohmann::ordered_json> template_kwargs;  // null: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

// POST /v1/chat/completions, checked (CONTRACT §8.1, §8.2).
struct ChatRequest {
  ChatPrompt prompt;
  std::optional<int64_t> max_tokens;  // unset: the rest of the context
  int top_logprobs = -1;              // -1: no logprobs
  GenerationFields generation;
  std::vector<std::string> ignored;  // top-level names for x-ignored-params
};

// `model` has been read by the caller (an unknown model is reported before any other field).
ChatRequest ParseChatRequest(const nlohmann::ordered_json& body, const ModelLimits& limits);

// ---- Parts, for the routes that take messages without generating

// The `messages` array alone, checked and normalised.
std::shared_ptr<const nlohmann::ordered_json> ParseMessages(const nlohmann::ordered_json& messages,
                                                            const ModelLimits& limits);
// Tools are not served yet: anything that asks for one is refused, never ignored.
void RefuseTools(FieldReader& reader);
// From `add_generation_prompt` to `reasoning_effort`. REQUIRES: prompt.messages.
void ReadTemplateFields(FieldReader& reader, ChatPrompt& prompt);

}  // namespace tandem::server
