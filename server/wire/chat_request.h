#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/wire/generation_fields.h"

namespace tandem::server {

// The fields that make a chat's prompt, in /tokenize and /v1/render too.
struct ChatPrompt {
  // As engine::NormalizeMessages returns them.
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

// Throws unless `messages` is an array of 1 to 4096 entries.
void CheckMessageCount(const nlohmann::ordered_json& messages);
// The `messages` array alone, 1 to 4096 of them, checked and normalised.
std::shared_ptr<const nlohmann::ordered_json> ParseMessages(const nlohmann::ordered_json& messages,
                                                            const ModelLimits& limits);
// Tools are not served yet: anything that asks for one is refused, never ignored.
void RefuseTools(FieldReader& reader);
// From `add_generation_prompt` to `reasoning_effort`. REQUIRES: prompt.messages.
void ReadTemplateFields(FieldReader& reader, ChatPrompt& prompt);
// `chat_template_kwargs` and `reasoning_effort` alone; null where neither is given.
std::shared_ptr<const nlohmann::ordered_json> ReadTemplateKwargs(FieldReader& reader);

}  // namespace tandem::server
