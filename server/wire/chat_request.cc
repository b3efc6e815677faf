#include "server/wire/chat_request.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "engine/chat/messages.h"
#include "engine/io/json.h"

namespace tandem::server {

using Json = nlohmann::ordered_json;

void CheckMessageCount(const Json& messages) {
  if (!messages.is_array()) throw WrongType("messages", "an array", messages);
  if (messages.empty() || messages.size() > engine::kMaxMessages) {
    throw BadValue("messages", "messages must have 1 to " + std::to_string(engine::kMaxMessages) +
                                   " entries, got " + std::to_string(messages.size()));
  }
}

std::shared_ptr<const Json> ParseMessages(const Json& messages, const ModelLimits& limits) {
  CheckMessageCount(messages);
  return std::make_shared<const Json>(engine::NormalizeMessages(
      messages, {.developer_as_system = !limits.knows_developer, .needs_tool_call_ids = true}));
}

void RefuseTools(FieldReader& reader) {
  if (ReadToolFields(reader).tools != nullptr) {
    throw UnsupportedField("tools", "tools is not supported with train: true: leave it out");
  }
}

std::shared_ptr<const Json> ReadTemplateKwargs(FieldReader& reader) {
  const Json* given = reader.Object("chat_template_kwargs");
  const auto effort = reader.String("reasoning_effort");
  if (given == nullptr && !effort) return nullptr;
  Json out = given != nullptr ? *given : Json::object();
  for (const char* reserved :
       {"messages", "tools", "bos_token", "eos_token", "add_generation_prompt"}) {
    if (out.contains(reserved)) {
      throw BadValue("chat_template_kwargs", std::string("chat_template_kwargs must not set '") +
                                                 reserved + "': the server sets it");
    }
  }
  if (effort) {
    static constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                                 "high", "xhigh",   "max"};
    if (std::find(kEfforts.begin(), kEfforts.end(), *effort) == kEfforts.end()) {
      throw BadValue("reasoning_effort",
                     "reasoning_effort must be none, minimal, low, medium, high, xhigh or max, "
                     "got " +
                         ShortForm(Json(*effort)));
    }
    if (!out.contains("reasoning_effort")) out["reasoning_effort"] = *effort;
    if (*effort == "none" && !out.contains("enable_thinking")) out["enable_thinking"] = false;
  }
  return std::make_shared<const Json>(std::move(out));
}

void ReadTemplateFields(FieldReader& reader, ChatPrompt& prompt) {
  const auto add_prompt = reader.Bool("add_generation_prompt");
  prompt.continue_final_message = reader.Bool("continue_final_message").value_or(false);
  if (prompt.continue_final_message) {
    if (add_prompt.value_or(false)) {
      throw BadValue("continue_final_message",
                     "continue_final_message and add_generation_prompt exclude each other");
    }
    const Json& last = prompt.messages->back();
    if (!engine::IsString(last["role"], "assistant") || engine::IsString(last["content"], "")) {
      throw BadValue("continue_final_message",
                     "continue_final_message needs a last message with role assistant and text");
    }
  }
  prompt.add_generation_prompt = add_prompt.value_or(!prompt.continue_final_message);
  prompt.template_kwargs = ReadTemplateKwargs(reader);
}

namespace {

// Reads `messages`, or `prompt_token_ids` in place of them.
void ReadChatPrompt(FieldReader& reader, const ModelLimits& limits, ChatRequest& request) {
  const Json* messages = reader.Any("messages");
  const Json* ids = reader.Array("prompt_token_ids");
  if (ids == nullptr) {
    if (messages == nullptr) throw MissingField("messages");
    request.prompt.messages = ParseMessages(*messages, limits);
    return;
  }
  if (messages != nullptr) {
    throw BadValue("prompt_token_ids", "prompt_token_ids and messages exclude each other");
  }
  if (ids->empty()) throw BadValue("prompt_token_ids", "prompt_token_ids must not be empty");
  request.prompt_ids = ReadTokenIds(*ids, "prompt_token_ids", limits.vocab_size);
}

// The chat template reads these, and a prompt of token ids has passed it.
void RefuseTemplateFields(FieldReader& reader) {
  for (const char* field : {"add_generation_prompt", "continue_final_message",
                            "chat_template_kwargs", "reasoning_effort"}) {
    if (reader.Any(field) == nullptr) continue;
    throw BadValue(field, std::string(field) +
                              " changes how messages are written, so it has no meaning with "
                              "prompt_token_ids: leave it out");
  }
}

}  // namespace

ChatRequest ParseChatRequest(const Json& body, const ModelLimits& limits) {
  FieldReader reader(body);
  reader.Accept({"model"});
  ChatRequest request;
  ReadChatPrompt(reader, limits, request);

  const auto max_completion = reader.Int("max_completion_tokens", 1, limits.max_model_len);
  const auto max_tokens = reader.Int("max_tokens", 1, limits.max_model_len);
  request.max_tokens = max_completion ? max_completion : max_tokens;
  request.generation = ReadSamplingFields(reader, limits, request.max_tokens);
  const bool logprobs = reader.Bool("logprobs").value_or(false);
  const auto top_logprobs = reader.Int("top_logprobs", 0, 20);
  if (top_logprobs && *top_logprobs > 0 && !logprobs) {
    throw BadValue("top_logprobs", "top_logprobs needs logprobs: true, got top_logprobs " +
                                       std::to_string(*top_logprobs) + " without it");
  }
  if (logprobs) request.top_logprobs = static_cast<int>(top_logprobs.value_or(0));
  ReadPromptLogprobs(reader, request.generation);
  request.generation.structured = ReadStructuredOutput(reader);
  request.prompt.tools = ReadToolFields(reader);
  ReadStreamFields(reader, request.generation);
  if (request.prompt_ids) {
    RefuseTemplateFields(reader);
  } else {
    ReadTemplateFields(reader, request.prompt);
  }
  ReadOutputFields(reader, request.generation);
  ReadPrediction(reader, request.generation);
  ReadFieldsWithoutEffect(reader, GenerationRoute::kChat);
  request.ignored = reader.unknown();
  return request;
}

}  // namespace tandem::server
