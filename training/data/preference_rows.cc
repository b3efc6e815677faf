// Parses rows of two answers to one prompt, the first preferred to the second.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "training/data/example.h"
#include "training/data/row_fields.h"

namespace tandem::training {
namespace {

using Json = nlohmann::ordered_json;
using row_fields::Column;
using row_fields::FindColumn;
using row_fields::IsBlank;
using row_fields::Said;
using row_fields::Text;
using row_fields::Throw;

// An answer and the field that contains it.
struct Answer {
  Json messages;
  std::string field;
};

std::string RoleOf(const Json& message) {
  if (!message.is_object() || !message.contains("role") || !message.at("role").is_string()) {
    return "";
  }
  return message.at("role").get<std::string>();
}

Json Messages(const Json& value, const std::string& field) {
  if (!value.is_array()) Throw(field, "must be a list of messages");
  if (value.empty()) Throw(field, "must have at least one message");
  return value;
}

// The chat of a prompt and an answer. Only the answer's messages are learned.
Example ChatOf(const Json& prompt, const Answer& answer, const Json* tools, const Json* extra,
               const ExampleOptions& options) {
  if (RoleOf(answer.messages.front()) != "assistant") {
    Throw(answer.field + "[0]", "must be a message of the assistant, the answer to the prompt");
  }
  // Parses the answer alone first, so that faults name its own messages.
  ParseConversation(answer.messages, nullptr, answer.field, options.developer_as_system,
                    LastMessage::kAssistant);
  Json whole = prompt;
  for (const Json& message : answer.messages) whole.push_back(message);
  Example example;
  example.chat = ParseConversation(whole, tools, "messages", options.developer_as_system,
                                   LastMessage::kAssistant);
  for (size_t i = 0; i < prompt.size(); ++i) example.chat.learned[i] = false;
  if (extra != nullptr) {
    if (!extra->is_object()) Throw("chat_template_kwargs", "must be an object");
    example.chat.extra = std::make_shared<const Json>(*extra);
  }
  return example;
}

Example PairOfChats(const Json& prompt, const std::string& prompt_field, const Answer& chosen,
                    const Answer& rejected, const Json* tools, const Json& row,
                    const ExampleOptions& options) {
  ParseConversation(prompt, nullptr, prompt_field, options.developer_as_system,
                    LastMessage::kAnyone);
  if (chosen.messages == rejected.messages) {
    Throw(rejected.field, "is the same as " + chosen.field + ", so neither is preferred");
  }
  const Json* extra = FindColumn(row, "chat_template_kwargs");
  Example example = ChatOf(prompt, chosen, tools, extra, options);
  example.rejected =
      std::make_shared<const Example>(ChatOf(prompt, rejected, tools, extra, options));
  return example;
}

Example PairOfTexts(const std::string& prompt, const std::string& chosen,
                    const std::string& rejected, const ExampleOptions& options) {
  if (chosen == rejected) {
    Throw(Quoted(options.columns[1], 40),
          "is the same as " + Quoted(options.columns[0], 40) + ", so neither is preferred");
  }
  const auto one = [&](const std::string& answer) {
    Example example;
    if (!options.instructions_as_chat) {
      example.plain = {prompt, answer};
      return example;
    }
    const Json question = Json::array({{{"role", "user"}, {"content", prompt}}});
    const Answer said{Json::array({{{"role", "assistant"}, {"content", answer}}}), "messages"};
    return ChatOf(question, said, nullptr, nullptr, options);
  };
  Example example = one(chosen);
  example.rejected = std::make_shared<const Example>(one(rejected));
  return example;
}

// The end of the common words of two texts that contain their prompt. Moves back to the white space
// before the first difference, so that no word is half prompt, half answer.
size_t EndOfCommonWords(const std::string& a, const std::string& b) {
  const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto end = static_cast<size_t>(differ.first - a.begin());
  const auto is_space = [](const std::string& text, size_t i) {
    return i < text.size() && IsBlank(text.substr(i, 1));
  };
  while (end > 0 && !(is_space(a, end) && is_space(b, end))) --end;
  while (end > 0 && is_space(a, end - 1)) --end;
  return end;
}

Example PairOfWholeTexts(const std::string& chosen, const std::string& rejected,
                         const ExampleOptions& options) {
  const size_t end = EndOfCommonWords(chosen, rejected);
  const std::string a = chosen.substr(end);
  const std::string b = rejected.substr(end);
  for (size_t k = 0; k < 2; ++k) {
    if (!IsBlank(k == 0 ? a : b)) continue;
    Throw(Quoted(options.columns[k], 40),
          "is a prefix of the other answer, so neither is preferred");
  }
  return PairOfTexts(chosen.substr(0, end), a, b, options);
}

// Parses chats that contain their prompt: their common messages before the answers.
Example PairOfWholeChats(const Json& chosen, const Json& rejected, const Json& row,
                         const ExampleOptions& options) {
  const std::string& first = options.columns[0];
  const std::string& second = options.columns[1];
  size_t shared = 0;
  const size_t most = std::min(chosen.size(), rejected.size());
  while (shared < most && chosen[shared] == rejected[shared]) ++shared;
  if (shared == chosen.size() || shared == rejected.size()) {
    Throw(Quoted(second, 40), "is equal to " + Quoted(first, 40) + " or its prefix");
  }
  if (shared == 0) {
    Throw(Quoted(second, 40),
          "has no message in common with " + Quoted(first, 40) + ": the prompt must be the same");
  }
  const std::string at = "[" + std::to_string(shared) + "]";
  for (const auto& [chat, name] : {std::pair(&chosen, &first), std::pair(&rejected, &second)}) {
    if (RoleOf((*chat)[shared]) != "assistant") {
      Throw(*name + at,
            "is the first difference of the chats but not a message of the assistant: the prompt "
            "must be the same");
    }
  }
  const auto part = [](const Json& chat, size_t from, size_t to) {
    Json messages = Json::array();
    for (size_t i = from; i < to; ++i) messages.push_back(chat[i]);
    return messages;
  };
  return PairOfChats(part(chosen, 0, shared), first, {part(chosen, shared, chosen.size()), first},
                     {part(rejected, shared, rejected.size()), second},
                     FindColumn(row, options.columns[3]), row, options);
}

// Parses answers with a separate prompt: texts or messages. `prompt` may be a text when the answers
// are lists.
Example PairBesidePrompt(const Json& prompt, const Json& chosen, const Json& rejected,
                         const Json& row, const ExampleOptions& options) {
  const std::string& field = options.columns[2];
  const auto as_messages = [](const Json& value, const std::string& column, const char* role) {
    if (!value.is_string()) return Messages(value, column);
    return Json::array({{{"role", role}, {"content", Said(value, column)}}});
  };
  const Json question = as_messages(prompt, field, "user");
  const Answer a{as_messages(chosen, options.columns[0], "assistant"), options.columns[0]};
  const Answer b{as_messages(rejected, options.columns[1], "assistant"), options.columns[1]};
  return PairOfChats(question, field, a, b, FindColumn(row, options.columns[3]), row, options);
}

// Whether the list is a whole chat with its prompt, as in most of the hub's data sets.
bool HoldsPrompt(const Json& answer) {
  return answer.is_array() && !answer.empty() && RoleOf(answer.front()) != "assistant";
}

Example ParseChosenRejected(const Json& row, const ExampleOptions& options) {
  const Json& chosen = Column(row, options.columns[0]);
  const Json& rejected = Column(row, options.columns[1]);
  const Json* prompt = FindColumn(row, options.columns[2]);
  for (size_t k = 0; k < 2; ++k) {
    const Json& answer = k == 0 ? chosen : rejected;
    if (answer.is_string()) Said(answer, options.columns[k]);
    if (!answer.is_string()) Messages(answer, options.columns[k]);
  }
  if (chosen.is_string() != rejected.is_string()) {
    Throw(Quoted(options.columns[0], 40),
          "and " + Quoted(options.columns[1], 40) + " must both be texts or both be messages");
  }
  if (chosen.is_string() && (prompt == nullptr || prompt->is_string())) {
    if (prompt == nullptr) {
      return PairOfWholeTexts(chosen.get<std::string>(), rejected.get<std::string>(), options);
    }
    return PairOfTexts(Text(*prompt, options.columns[2]), chosen.get<std::string>(),
                       rejected.get<std::string>(), options);
  }
  if (prompt == nullptr || (HoldsPrompt(chosen) && HoldsPrompt(rejected))) {
    return PairOfWholeChats(chosen, rejected, row, options);
  }
  return PairBesidePrompt(*prompt, chosen, rejected, row, options);
}

// Parses OpenAI's lines for preference fine-tuning.
Example ParseOpenAi(const Json& row, const ExampleOptions& options) {
  const std::string& column = options.columns[0];
  const Json& input = Column(row, column);
  if (!input.is_object()) Throw(Quoted(column, 40), "must be an object with messages");
  const std::string field = column + ".messages";
  if (!input.contains("messages")) Throw(field, "is missing");
  const Json prompt = Messages(input.at("messages"), field);
  const auto answer = [&](size_t k) {
    const std::string& name = options.columns[k];
    return Answer{Messages(Column(row, name), name), name};
  };
  return PairOfChats(prompt, field, answer(1), answer(2), FindColumn(input, "tools"), row, options);
}

}  // namespace

Example ParsePreference(const Json& row, const ExampleOptions& options) {
  return options.format == RowFormat::kOpenAiPreference ? ParseOpenAi(row, options)
                                                        : ParseChosenRejected(row, options);
}

}  // namespace tandem::training
