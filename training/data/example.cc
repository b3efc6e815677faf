#include "training/data/example.h"

#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "training/data/row_fields.h"

namespace tandem::training {
namespace {

using Json = nlohmann::ordered_json;
using row_fields::Column;
using row_fields::FindColumn;
using row_fields::IsBlank;
using row_fields::Said;
using row_fields::Text;
using row_fields::TextOr;
using row_fields::Throw;

// A list, or in a container of texts (CSV) the JSON text of one, which is parsed into `*parsed`.
const Json& ListOrItsText(const Json& value, const std::string& column, Json* parsed) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] != '[') return value;
  *parsed = engine::ParseUntrustedJson(text, Quoted(column, 40),
                                       engine::JsonLimits{.keep_wide_integers = true});
  return *parsed;
}

Conversation Ask(const std::string& system, const std::string& question, const std::string& answer,
                 const ExampleOptions& options) {
  Json messages = Json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", question}});
  messages.push_back({{"role", "assistant"}, {"content", answer}});
  return ParseConversation(messages, nullptr, "messages", options.developer_as_system,
                           LastMessage::kAssistant);
}

Example ParseInstruction(const Json& row, const ExampleOptions& options) {
  const std::string& instruction = Text(Column(row, options.columns[0]), options.columns[0]);
  const std::string& output = Said(Column(row, options.columns[1]), options.columns[1]);
  const std::string input = TextOr(row, options.columns[2]);
  const std::string system = TextOr(row, options.columns[3]);
  if (IsBlank(instruction) && IsBlank(input)) Throw(Quoted(options.columns[0], 40), "is empty");
  Example example;
  if (options.instructions_as_chat) {
    const std::string question = IsBlank(input) ? instruction : instruction + "\n\n" + input;
    example.chat = Ask(system, question, output, options);
    return example;
  }
  // The prompt that Alpaca and later models were trained with.
  std::string& prompt = example.plain.prompt;
  prompt = IsBlank(input)
               ? "Below is an instruction that describes a task. Write a response that "
                 "appropriately completes the request.\n\n"
               : "Below is an instruction that describes a task, paired with an input that "
                 "provides further context. Write a response that appropriately completes the "
                 "request.\n\n";
  if (!system.empty()) prompt = system + "\n\n";
  prompt += "### Instruction:\n" + instruction + "\n\n";
  if (!IsBlank(input)) prompt += "### Input:\n" + input + "\n\n";
  prompt += "### Response:\n";
  example.plain.completion = output;
  return example;
}

// Two lists of messages make a chat; the completion is learned.
Example ParsePromptCompletion(const Json& row, const ExampleOptions& options) {
  const Json& prompt = Column(row, options.columns[0]);
  const Json& completion = Column(row, options.columns[1]);
  Example example;
  if (prompt.is_array() && completion.is_array()) {
    Json messages = prompt;
    for (const Json& message : completion) messages.push_back(message);
    example.chat = ParseConversation(messages, FindColumn(row, options.columns[2]), "messages",
                                     options.developer_as_system, LastMessage::kAssistant);
    bool learns = false;
    for (size_t i = 0; i < example.chat.learned.size(); ++i) {
      if (i < prompt.size()) example.chat.learned[i] = false;
      learns = learns || example.chat.learned[i];
    }
    if (!learns) Throw(Quoted(options.columns[1], 40), "has nothing to learn");
    return example;
  }
  if (prompt.is_array() || completion.is_array()) {
    Throw(Quoted(options.columns[0], 40),
          "and the completion must both be texts or both be messages");
  }
  const std::string& question = Text(prompt, options.columns[0]);
  const std::string& answer = Said(completion, options.columns[1]);
  if (options.instructions_as_chat) {
    example.chat = Ask("", question, answer, options);
  } else {
    example.plain = {question, answer};
  }
  return example;
}

// Converts the text of a function_call, {"name", "arguments"}.
Json ToolCall(const std::string& text, const std::string& at) {
  const Json call =
      engine::ParseUntrustedJson(text, at, engine::JsonLimits{.keep_wide_integers = true});
  if (!call.is_object() || !call.contains("name") || !call.contains("arguments")) {
    Throw(at, "must be the JSON text of an object with name and arguments");
  }
  Json calls = Json::array();
  calls.push_back({{"type", "function"},
                   {"function", {{"name", call.at("name")}, {"arguments", call.at("arguments")}}}});
  return {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", std::move(calls)}};
}

Json ShareGptMessage(const Json& turn, const std::string& at) {
  static const std::map<std::string_view, std::string_view> roles = {
      {"human", "user"},        {"user", "user"},           {"gpt", "assistant"},
      {"chatgpt", "assistant"}, {"assistant", "assistant"}, {"model", "assistant"},
      {"bing", "assistant"},    {"bard", "assistant"},      {"system", "system"},
      {"tool", "tool"},         {"observation", "tool"},    {"function_response", "tool"}};
  if (!turn.is_object()) Throw(at, "must be an object");
  for (const char* field : {"from", "value"}) {
    if (!turn.contains(field) || !turn.at(field).is_string()) {
      Throw(at + "." + field, "must be a text");
    }
  }
  const auto& from = turn.at("from").get_ref<const std::string&>();
  const auto& value = turn.at("value").get_ref<const std::string&>();
  Json message;
  if (from == "function_call") {
    message = ToolCall(value, at + ".value");
  } else {
    const auto role = roles.find(from);
    if (role == roles.end()) {
      Throw(at + ".from", "must be human, gpt, system, tool, function_call or observation, got " +
                              Quoted(from, 40));
    }
    message = {{"role", role->second}, {"content", value}};
  }
  if (turn.contains("weight")) message["weight"] = turn.at("weight");
  return message;
}

Example ParseShareGpt(const Json& row, const ExampleOptions& options) {
  const std::string& column = options.columns[0];
  Json parsed;
  const Json& turns = ListOrItsText(Column(row, column), column, &parsed);
  if (!turns.is_array()) Throw(column, "must be a list of turns");
  Json messages = Json::array();
  if (const std::string system = TextOr(row, options.columns[1]); !IsBlank(system)) {
    messages.push_back({{"role", "system"}, {"content", system}});
  }
  for (size_t i = 0; i < turns.size(); ++i) {
    messages.push_back(ShareGptMessage(turns[i], column + "[" + std::to_string(i) + "]"));
  }
  Example example;
  example.chat = ParseConversation(messages, FindColumn(row, options.columns[2]), column,
                                   options.developer_as_system, LastMessage::kAssistant);
  return example;
}

Example ParseMessages(const Json& row, const ExampleOptions& options) {
  Example example;
  const std::string& column = options.columns[0];
  Json parsed;
  example.chat = ParseConversation(ListOrItsText(Column(row, column), column, &parsed),
                                   FindColumn(row, options.columns[1]), column,
                                   options.developer_as_system, LastMessage::kAssistant);
  if (const Json* extra = FindColumn(row, "chat_template_kwargs")) {
    if (!extra->is_object()) Throw("chat_template_kwargs", "must be an object");
    example.chat.extra = std::make_shared<const Json>(*extra);
  }
  return example;
}

}  // namespace

Example ParseExample(const Json& row, const ExampleOptions& options) {
  switch (options.format) {
    case RowFormat::kMessages:
      return ParseMessages(row, options);
    case RowFormat::kShareGpt:
      return ParseShareGpt(row, options);
    case RowFormat::kInstruction:
      return ParseInstruction(row, options);
    case RowFormat::kPromptCompletion:
      return ParsePromptCompletion(row, options);
    case RowFormat::kText: {
      Example example;
      example.plain.completion = Said(Column(row, options.columns[0]), options.columns[0]);
      return example;
    }
    case RowFormat::kPreference:
    case RowFormat::kOpenAiPreference:
      return ParsePreference(row, options);
    case RowFormat::kAuto:
    case RowFormat::kPlain:
      break;
  }
  throw Error(ErrorCode::kInternal, "a format without rows");
}

}  // namespace tandem::training
