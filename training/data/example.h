#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "training/data/row_format.h"

namespace tandem::training {

// A chat in the template's form, and which of its messages are learned.
struct Conversation {
  std::shared_ptr<const nlohmann::ordered_json> messages;  // array, checked and normalised
  std::shared_ptr<const nlohmann::ordered_json> tools;     // array, or null
  std::shared_ptr<const nlohmann::ordered_json> extra;     // chat_template_kwargs, or null
  std::vector<bool> learned;                               // one per message
};

// Texts without a template: the model reads the prompt and learns the completion.
struct PlainExample {
  std::string prompt;
  std::string completion;
};

// A parsed row: either a chat (messages set) or plain texts.
struct Example {
  Conversation chat;
  PlainExample plain;
  std::shared_ptr<const Example> rejected;  // of a pair: the same prompt with the other answer
  bool is_chat() const { return chat.messages != nullptr; }
};

struct ExampleOptions {
  RowFormat format = RowFormat::kMessages;
  std::vector<std::string> columns;  // as ColumnsOf returns them
  // Instructions and plain prompts become a chat of the model's template; false: Alpaca's prompt.
  bool instructions_as_chat = false;
  bool developer_as_system = true;  // see engine::NormalizeOptions
};

// Checks and parses a row. Throws Error naming the field and the fault.
Example ParseExample(const nlohmann::ordered_json& row, const ExampleOptions& options);

// Parses a row in a format of preferences. Both answers share the prompt and must differ.
Example ParsePreference(const nlohmann::ordered_json& row, const ExampleOptions& options);

// Parses a list of at most engine::kMaxMessages. Learns every assistant message except those of
// weight 0. `tools` may be null, an array, or JSON text of one. With LastMessage::kAnyone the list
// may be a prompt, whose last message need not be the assistant's.
enum class LastMessage { kAssistant, kAnyone };
Conversation ParseConversation(const nlohmann::ordered_json& messages,
                               const nlohmann::ordered_json* tools, const std::string& field,
                               bool developer_as_system, LastMessage last);

}  // namespace tandem::training
