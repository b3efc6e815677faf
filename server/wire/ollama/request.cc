#include "server/wire/ollama/request.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/io/json.h"
#include "server/wire/ollama/messages.h"
#include "server/wire/ollama/options.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using engine::IsString;

constexpr std::string_view kChatNames[][2] = {
    {"response_format.json_schema.schema", "format"},
    {"response_format.json_schema", "format"},
    {"response_format", "format"},
    {"repetition_penalty", "repeat_penalty"},
    {"max_tokens", "num_predict"},
};

// `format`: "json", or a JSON schema.
void ReadOllamaFormat(FieldReader& reader, Json& body) {
  const Json* format = reader.Any("format");
  if (format == nullptr || IsString(*format, "")) return;
  Json& out = body["response_format"];
  if (IsString(*format, "json")) {
    out["type"] = "json_object";
    return;
  }
  if (!format->is_object()) {
    throw BadValue("format", "format must be \"json\" or a JSON schema, got " + ShortForm(*format));
  }
  out["type"] = "json_schema";
  out["json_schema"]["name"] = "answer";
  out["json_schema"]["schema"] = *format;
}

// `think`: a boolean, or the effort. Returns whether it asks for thoughts.
bool ReadThink(FieldReader& reader, Json& body) {
  const Json* think = reader.Any("think");
  if (think == nullptr || IsString(*think, "")) return false;
  if (think->is_boolean()) {
    const bool thinks = think->get<bool>();
    body["chat_template_kwargs"]["enable_thinking"] = thinks;
    return thinks;
  }
  for (const char* effort : {"low", "medium", "high", "max"}) {
    if (!IsString(*think, effort)) continue;
    body["chat_template_kwargs"]["enable_thinking"] = true;
    body["reasoning_effort"] = effort;
    return true;
  }
  throw BadValue("think",
                 "think must be true, false, \"low\", \"medium\", \"high\" or \"max\", got " +
                     ShortForm(*think));
}

// The fields that both routes have, apart from `model` and the prompt.
void ReadSharedFields(FieldReader& reader, const ModelLimits& limits, OllamaRequest& request,
                      Json& body) {
  request.stream = reader.Bool("stream").value_or(true);
  if (request.stream) body["stream"] = true;
  request.is_zero_keep_alive = ReadKeepAlive(reader);
  ReadOllamaFormat(reader, body);
  ReadOllamaOptions(reader, limits, body, request.ignored);
}

void ReadOllamaLogprobs(FieldReader& reader, OllamaRequest& request, Json& body) {
  const bool logprobs = reader.Bool("logprobs").value_or(false);
  const auto top = reader.Int("top_logprobs", 0, 20);
  if (!logprobs) return;
  if (request.is_plain) {
    body["logprobs"] = top.value_or(0);
    return;
  }
  body["logprobs"] = true;
  if (top) body["top_logprobs"] = *top;
}

void ReadOllamaTools(FieldReader& reader, Json& body) {
  const Json* tools = reader.Array("tools");
  if (tools == nullptr || tools->empty()) return;
  Json out = *tools;
  for (Json& tool : out) {
    if (tool.is_object() && !tool.contains("type")) tool["type"] = "function";
  }
  body["tools"] = std::move(out);
}

// Whether the answer continues the last message.
bool ContinuesAnswer(const Json& messages) {
  const Json& last = messages.back();
  return IsString(last["role"], "assistant") && !IsString(last["content"], "") &&
         !last.contains("tool_calls");
}

OllamaRequest Finished(OllamaRequest request, const FieldReader& reader, Json body) {
  for (std::string& name : reader.unknown()) request.ignored.push_back(std::move(name));
  request.body = std::make_shared<const Json>(std::move(body));
  return request;
}

struct GeneratePrompt {
  std::string prompt;
  std::string suffix;
  std::string system;
  bool is_raw = false;
};

void RefuseOllamaTemplate(FieldReader& reader) {
  if (reader.String("template").value_or("").empty()) return;
  throw UnsupportedField("template",
                         "template is not supported: the model's own template is used; send the "
                         "whole prompt with raw, or start the server with --chat-template");
}

GeneratePrompt ReadGeneratePrompt(FieldReader& reader) {
  GeneratePrompt out;
  out.prompt = reader.String("prompt").value_or("");
  out.suffix = reader.String("suffix").value_or("");
  out.system = reader.String("system").value_or("");
  out.is_raw = reader.Bool("raw").value_or(false);
  RefuseOllamaTemplate(reader);
  const Json* context = reader.Array("context");
  const bool has_context = context != nullptr && !context->empty();
  if (out.is_raw && (!out.system.empty() || has_context)) {
    throw BadValue("raw", "raw excludes system and context: the prompt is sent as it is");
  }
  if (!out.suffix.empty() && (!out.system.empty() || has_context)) {
    throw BadValue("suffix", "suffix excludes system and context: the answer is the text between");
  }
  return out;
}

void WritePlainPrompt(const GeneratePrompt& prompt, Json& body) {
  body["prompt"] = prompt.prompt;
  if (!prompt.suffix.empty()) {
    body["suffix"] = prompt.suffix;
  } else {
    // A raw prompt holds the control tokens of the client's own template.
    body["parse_special"] = prompt.is_raw;
  }
}

void WriteTurn(const GeneratePrompt& prompt, Json& body) {
  Json& messages = body["messages"];
  messages = Json::array();
  if (!prompt.system.empty()) {
    messages.push_back({{"role", "system"}, {"content", prompt.system}});
  }
  messages.push_back({{"role", "user"}, {"content", prompt.prompt}});
}

}  // namespace

OllamaRequest ParseOllamaChat(const Json& body, const ModelLimits& limits) {
  FieldReader reader(body);
  reader.Accept({"model"});
  OllamaRequest request;
  Json chat = Json::object();
  const Json* messages = reader.Any("messages");
  const bool has_messages = messages != nullptr && *messages != Json::array();
  if (has_messages) {
    chat["messages"] = TranslateOllamaMessages(*messages);
    if (ContinuesAnswer(chat["messages"])) chat["continue_final_message"] = true;
  }
  ReadSharedFields(reader, limits, request, chat);
  request.thinks = ReadThink(reader, chat);
  ReadOllamaTools(reader, chat);
  ReadOllamaLogprobs(reader, request, chat);
  if (!has_messages) return request;
  return Finished(std::move(request), reader, std::move(chat));
}

OllamaRequest ParseOllamaGenerate(const Json& body, const ModelLimits& limits, bool has_template) {
  FieldReader reader(body);
  reader.Accept({"model"});
  OllamaRequest request;
  RefuseImages(reader.Array("images"), "images");
  const GeneratePrompt prompt = ReadGeneratePrompt(reader);
  request.is_plain =
      prompt.is_raw || !prompt.suffix.empty() || (!has_template && prompt.system.empty());
  Json out = Json::object();
  ReadSharedFields(reader, limits, request, out);
  if (const Json* context = reader.Array("context")) {
    request.context = ReadTokenIds(*context, "context", limits.vocab_size);
  }
  if (request.is_plain) {
    if (!out.contains("max_tokens")) out["max_tokens"] = limits.max_model_len;
    WritePlainPrompt(prompt, out);
    if (reader.Any("think") != nullptr) request.ignored.emplace_back("think");
  } else {
    WriteTurn(prompt, out);
    request.thinks = ReadThink(reader, out);
  }
  ReadOllamaLogprobs(reader, request, out);
  if (prompt.prompt.empty() && prompt.suffix.empty()) return request;
  return Finished(std::move(request), reader, std::move(out));
}

std::string InOllamaTerms(std::string text) {
  for (const auto& [from, to] : kChatNames) {
    for (size_t at = text.find(from); at != std::string::npos;
         at = text.find(from, at + to.size())) {
      text.replace(at, from.size(), to);
    }
  }
  return text;
}

Error InOllamaTerms(const Error& error) {
  return Error(error.code(), InOllamaTerms(std::string(error.what())))
      .WithParam(InOllamaTerms(error.param()))
      .WithReason(error.reason());
}

}  // namespace tandem::server
