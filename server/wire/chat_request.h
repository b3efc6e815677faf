#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/wire/generation_fields.h"
#include "server/wire/tool_fields.h"

namespace tandem::server {

// The fields that form a chat's prompt, also for /tokenize and /v1/render.
struct ChatPrompt {
  // The result of engine::NormalizeMessages. Null if ChatRequest::prompt_ids is set.
  std::shared_ptr<const nlohmann::ordered_json> messages;
  std::shared_ptr<const nlohmann::ordered_json> template_kwargs;  // null: none
  ToolFields tools;
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

// POST /v1/chat/completions, checked.
struct ChatRequest {
  ChatPrompt prompt;
  // The prompt itself, in place of messages; never empty. The template is not applied then.
  std::optional<std::vector<TokenId>> prompt_ids;
  std::optional<int64_t> max_tokens;  // unset: up to the end of the context
  int top_logprobs = -1;              // -1: no logprobs
  GenerationFields generation;
  std::vector<std::string> ignored;  // unknown top-level fields, for x-ignored-params
};

// The caller reads `model` first: an unknown model is reported before any other fault.
ChatRequest ParseChatRequest(const nlohmann::ordered_json& body, const ModelLimits& limits);

// ---- For routes that take messages without generating

// Throws unless `messages` is an array of 1 to 4096 entries.
void CheckMessageCount(const nlohmann::ordered_json& messages);
// Checks and normalises the `messages` array, 1 to 4096 entries.
std::shared_ptr<const nlohmann::ordered_json> ParseMessages(const nlohmann::ordered_json& messages,
                                                            const ModelLimits& limits);
// Training reads tools from rows only: throws for a request with some, instead of ignoring them.
void RefuseTools(FieldReader& reader);
// Reads the fields from `add_generation_prompt` to `reasoning_effort`. REQUIRES: prompt.messages is
// set.
void ReadTemplateFields(FieldReader& reader, ChatPrompt& prompt);
// Reads only `chat_template_kwargs` and `reasoning_effort`; null if neither is given.
std::shared_ptr<const nlohmann::ordered_json> ReadTemplateKwargs(FieldReader& reader);

}  // namespace tandem::server
