#include "server/wire/responses/responses_request.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "engine/io/json.h"
#include "server/wire/metadata.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using engine::IsString;

Json OrNull(const Json* value) { return value == nullptr ? Json() : *value; }

// Fields of chat completions that this API names differently or cannot express.
void RefuseForeignFields(FieldReader& reader) {
  static constexpr std::pair<std::string_view, std::string_view> kForeign[] = {
      {"conversation", "this server keeps no conversations: use previous_response_id"},
      {"prompt", "this server keeps no prompts: use instructions and input"},
      {"prompt_logprobs", "use /v1/chat/completions"},
      {"max_tokens", "use max_output_tokens"},
      {"max_completion_tokens", "use max_output_tokens"},
      {"response_format", "use text.format"},
      {"reasoning_effort", "use reasoning.effort"},
      {"logprobs", "use include with message.output_text.logprobs"},
  };
  for (const auto& [name, advice] : kForeign) {
    const Json* value = reader.Any(name);
    if (value == nullptr || *value == Json(false)) continue;
    throw UnsupportedField(std::string(name),
                           std::string(name) + " is not supported here: " + std::string(advice));
  }
  if (const Json* n = reader.Any("n"); n != nullptr && *n != Json(1)) {
    throw UnsupportedField("n", "n must be 1: a response has one answer");
  }
}

// Translates one request. Each function reads some fields into chat_ and settings_.
class Translation {
 public:
  Translation(const Json& body, const ModelLimits& limits, const ResponsesLookup& lookup)
      : body_(body), limits_(limits), lookup_(lookup), reader_(body) {}

  ResponsesRequest Run() {
    reader_.Accept({"model"});
    chat_["model"] = body_["model"];
    ReadPrompt();
    RefuseForeignFields(reader_);
    ReadLimits();
    ReadSettings();
    ReadTools();
    ReadText();
    ReadLogprobs();
    ReadReasoning();
    ReadModes();
    PassOthersOn();
    out_.chat = std::make_shared<const Json>(std::move(chat_));
    out_.settings = std::make_shared<const Json>(std::move(settings_));
    return std::move(out_);
  }

 private:
  void ReadPrompt() {
    const Json* input = reader_.Any("input");
    const Json* ids = reader_.Array("prompt_token_ids");
    if (input == nullptr && ids == nullptr) throw MissingField("input");
    const auto instructions = reader_.String("instructions");
    out_.tools = ReadResponsesTools(reader_);
    const auto previous = reader_.String("previous_response_id");
    settings_["instructions"] = instructions ? Json(*instructions) : Json();
    settings_["previous_response_id"] = previous ? Json(*previous) : Json();
    if (ids != nullptr) {
      if (input != nullptr || instructions || previous) {
        throw BadValue("prompt_token_ids",
                       "prompt_token_ids is the whole prompt: leave input, instructions and "
                       "previous_response_id out");
      }
      // A stored response is a list of items, and token ids are none.
      if (reader_.Bool("store").value_or(true)) {
        throw BadValue("prompt_token_ids", "prompt_token_ids needs store: false");
      }
      chat_["prompt_token_ids"] = *ids;
      return;
    }
    out_.input =
        ReadResponsesInput(instructions, StoredItems(previous), *input, out_.tools, lookup_);
    chat_["messages"] = out_.input.messages;
  }

  Json StoredItems(const std::optional<std::string>& previous) {
    if (!previous) return Json::array();
    std::optional<Json> items = lookup_.items_of ? lookup_.items_of(*previous) : std::nullopt;
    if (items) return std::move(*items);
    throw Error(ErrorCode::kInvalidArgument,
                "previous_response_id names no stored response, got " + ShortForm(Json(*previous)) +
                    ": it is unknown, deleted, expired, or was made with store: false")
        .WithParam("previous_response_id")
        .WithReason("previous_response_not_found");
  }

  void ReadLimits() {
    const auto most = reader_.Int("max_output_tokens", 1, limits_.max_model_len);
    if (most) chat_["max_completion_tokens"] = *most;
    settings_["max_output_tokens"] = most ? Json(*most) : Json();
    const Json* most_calls = reader_.Any("max_tool_calls");
    if (most_calls != nullptr) {
      throw UnsupportedField("max_tool_calls",
                             "max_tool_calls limits tools that run at OpenAI: leave it out");
    }
    settings_["max_tool_calls"] = nullptr;
  }

  void ReadSettings() {
    for (const char* name : {"temperature", "top_p", "presence_penalty", "frequency_penalty"}) {
      const Json* value = reader_.Any(name);
      if (value != nullptr) chat_[name] = *value;  // ParseChatRequest checks it
      settings_[name] = OrNull(value);
    }
    settings_["metadata"] = Json::object();
    for (auto& [key, value] : ParseMetadata(reader_)) settings_["metadata"][key] = value;
    for (const char* name : {"user", "safety_identifier", "prompt_cache_key"}) {
      settings_[name] = OrNull(reader_.Any(name));
      if (!settings_[name].is_string()) settings_[name] = nullptr;
    }
    settings_["service_tier"] = "default";
    reader_.Accept({"client_metadata", "service_tier", "prompt_cache_retention", "stream_options",
                    "context_management", "moderation"});
  }

  void ReadTools() {
    if (!out_.tools.chat.empty()) chat_["tools"] = out_.tools.chat;
    const Json* choice = reader_.Any("tool_choice");
    if (choice != nullptr) chat_["tool_choice"] = TranslateToolChoice(*choice, out_.tools);
    const bool is_parallel = reader_.Bool("parallel_tool_calls").value_or(true);
    if (!out_.tools.chat.empty()) chat_["parallel_tool_calls"] = is_parallel;
    settings_["tools"] = out_.tools.echoed;
    settings_["tool_choice"] = choice != nullptr ? *choice : Json("auto");
    settings_["parallel_tool_calls"] = is_parallel;
  }

  void ReadText() {
    Json text = {{"format", {{"type", "text"}}}};
    if (const Json* given = reader_.Object("text")) {
      FieldReader members(*given, "text");
      if (const Json* format = members.Object("format")) text["format"] = ReadFormat(*format);
      if (const auto verbosity = members.String("verbosity")) text["verbosity"] = *verbosity;
    }
    settings_["text"] = std::move(text);
  }

  Json ReadFormat(const Json& format) {
    FieldReader members(format, "text.format");
    const std::string type = members.RequiredString("type");
    if (type == "text" || type == "json_object") {
      chat_["response_format"] = {{"type", type}};
      return {{"type", type}};
    }
    if (type != "json_schema") {
      throw BadValue("text.format.type",
                     "text.format.type must be text, json_object or json_schema, got " +
                         ShortForm(Json(type)));
    }
    const std::string name = members.RequiredString("name");
    const Json* schema = members.Object("schema");
    if (schema == nullptr) throw MissingField("text.format.schema");
    const auto description = members.String("description");
    const auto strict = members.Bool("strict");
    Json inner = {{"name", name}};
    if (description) inner["description"] = *description;
    inner["schema"] = *schema;
    if (strict) inner["strict"] = *strict;
    chat_["response_format"] = {{"type", type}, {"json_schema", inner}};
    Json echoed = {{"type", type},
                   {"name", name},
                   {"description", description ? Json(*description) : Json()},
                   {"schema", *schema},
                   {"strict", strict.value_or(true)}};
    return echoed;
  }

  void ReadLogprobs() {
    bool wanted = false;
    if (const Json* include = reader_.Array("include")) {
      for (size_t i = 0; i < include->size(); ++i) {
        if (!(*include)[i].is_string()) {
          throw WrongType("include[" + std::to_string(i) + "]", "a string", (*include)[i]);
        }
        wanted = wanted || IsString((*include)[i], "message.output_text.logprobs");
      }
    }
    const auto top = reader_.Int("top_logprobs", 0, 20);
    if (wanted || top.value_or(0) > 0) {
      chat_["logprobs"] = true;
      chat_["top_logprobs"] = top.value_or(0);
    }
    settings_["top_logprobs"] = top.value_or(0);
  }

  void ReadReasoning() {
    Json echoed = {{"effort", nullptr}, {"summary", nullptr}};
    if (const Json* given = reader_.Object("reasoning")) {
      FieldReader members(*given, "reasoning");
      if (const auto effort = members.String("effort")) {
        chat_["reasoning_effort"] = *effort;
        echoed["effort"] = *effort;
      }
      if (const auto summary = members.String("summary")) {
        static constexpr std::array<std::string_view, 4> kSummaries = {"none", "auto", "concise",
                                                                       "detailed"};
        if (std::find(kSummaries.begin(), kSummaries.end(), *summary) == kSummaries.end()) {
          throw BadValue("reasoning.summary",
                         "reasoning.summary must be auto, concise or detailed, got " +
                             ShortForm(Json(*summary)));
        }
        if (*summary != "none") echoed["summary"] = *summary;
      }
    }
    settings_["reasoning"] = std::move(echoed);
  }

  void ReadModes() {
    out_.stream = reader_.Bool("stream").value_or(false);
    out_.store = reader_.Bool("store").value_or(true);
    out_.is_background = reader_.Bool("background").value_or(false);
    if (out_.is_background && !out_.store) {
      throw BadValue("background",
                     "background: true needs store: true, because the response is "
                     "fetched later");
    }
    const std::string truncation = reader_.String("truncation").value_or("disabled");
    if (truncation != "auto" && truncation != "disabled") {
      throw BadValue("truncation",
                     "truncation must be auto or disabled, got " + ShortForm(Json(truncation)));
    }
    out_.truncates = truncation == "auto";
    settings_["truncation"] = truncation;
    settings_["store"] = out_.store;
    settings_["background"] = out_.is_background;
  }

  // Sampling fields and extensions have the same names in both APIs. ParseChatRequest checks them,
  // refuses some, and lists the unknown ones.
  void PassOthersOn() {
    for (const std::string& name : reader_.unknown()) {
      if (name != "messages") chat_[name] = body_[name];
    }
  }

  const Json& body_;
  const ModelLimits& limits_;
  const ResponsesLookup& lookup_;
  FieldReader reader_;
  Json chat_ = Json::object();
  Json settings_ = Json::object();
  ResponsesRequest out_;
};

// The index in "NAME[12]…"; nullopt for other texts.
std::optional<size_t> IndexIn(std::string_view param, std::string_view name) {
  if (!param.starts_with(name) || param.substr(name.size(), 1) != "[") return std::nullopt;
  size_t index = 0;
  const char* const end = param.data() + param.size();
  const auto [at, fault] = std::from_chars(param.data() + name.size() + 1, end, index);
  if (fault != std::errc() || at == end || *at != ']') return std::nullopt;
  return index;
}

std::string OwnParam(const std::string& param, const ResponsesRequest& request) {
  if (const auto i = IndexIn(param, "messages"); i && *i < request.input.paths.size()) {
    return request.input.paths[*i];
  }
  if (const auto i = IndexIn(param, "tools"); i && *i < request.tools.paths.size()) {
    const size_t member = param.rfind('.');
    return request.tools.paths[*i] + (member == std::string::npos ? "" : param.substr(member));
  }
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"messages", "input"},
      {"response_format.json_schema", "text.format"},
      {"response_format", "text.format"},
      {"reasoning_effort", "reasoning.effort"},
      {"max_completion_tokens", "max_output_tokens"},
  };
  for (const auto& [chat, own] : kNames) {
    if (param.starts_with(chat)) return std::string(own) + param.substr(chat.size());
  }
  return param;
}

}  // namespace

ResponsesRequest ParseResponsesRequest(const Json& body, const ModelLimits& limits,
                                       const ResponsesLookup& lookup) {
  return Translation(body, limits, lookup).Run();
}

Error InResponsesTerms(const Error& error, const ResponsesRequest& request) {
  const std::string own = OwnParam(error.param(), request);
  std::string message = error.what();
  if (!error.param().empty() && own != error.param()) {
    // Messages begin with the field.
    const size_t at = message.find(error.param());
    if (at != std::string::npos) message.replace(at, error.param().size(), own);
  }
  return Error(error.code(), message).WithParam(own).WithReason(error.reason());
}

}  // namespace tandem::server
