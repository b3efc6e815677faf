#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "training/data/row_format.h"

namespace tandem::training {

// A chat as the template takes it, and which of its messages are to be learned.
struct Conversation {
  std::shared_ptr<const nlohmann::ordered_json> messages;  // array, checked and normalised
  std::shared_ptr<const nlohmann::ordered_json> tools;     // array, or null
  std::shared_ptr<const nlohmann::ordered_json> extra;     // chat_template_kwargs, or null
  std::vector<bool> learned;                               // beside the messages
};

// Texts without a template: the completion is learned, the prompt is read.
struct PlainExample {
  std::string prompt;
  std::string completion;
};

// One row, understood: either a chat (messages set) or plain texts.
struct Example {
  Conversation chat;
  PlainExample plain;
  std::shared_ptr<const Example> rejected;  // of a pair: the same prompt with the other answer
  bool is_chat() const { return chat.messages != nullptr; }
};

struct ExampleOptions {
  RowFormat format = RowFormat::kMessages;
  std::vector<std::string> columns;  // as ColumnsOf gives them
  // Instructions and plain prompts become a chat of the model's template; without, Alpaca's words.
  bool instructions_as_chat = false;
  bool developer_as_system = true;  // see engine::NormalizeOptions
};

// Checks a row and understands it. Throws Error with what is wrong, naming the field.
Example ParseExample(const nlohmann::ordered_json& row, const ExampleOptions& options);

// The same of rows in the formats of preferences. Both answers have one prompt, and differ.
Example ParsePreference(const nlohmann::ordered_json& row, const ExampleOptions& options);

// The same of a list of messages alone; every assistant message is learned but those of weight 0.
// `tools` may be null, an array, or the JSON text of one. For pairs of answers: a prompt need not
// end with the assistant's words.
enum class LastMessage { kAssistant, kAnyone };
Conversation ParseConversation(const nlohmann::ordered_json& messages,
                               const nlohmann::ordered_json* tools, const std::string& field,
                               bool developer_as_system, LastMessage last);

}  // namespace tandem::training
