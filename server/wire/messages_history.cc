#include "server/wire/messages_history.h"

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/chat/messages.h"
#include "engine/io/json.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using engine::IsString;

constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";
constexpr std::string_view kFailed = "Error: ";

std::string BlockPath(const std::string& at, size_t i) {
  return at + "[" + std::to_string(i) + "]";
}

Json TextPart(std::string text) {
  Json part = Json::object();
  part["type"] = "text";
  part["text"] = std::move(text);
  return part;
}

Json ChatMessage(std::string_view role) {
  Json message = Json::object();
  message["role"] = role;
  return message;
}

// The error for a block that this role or place does not take.
Error UnknownBlock(const std::string& at, const std::string& type, std::string_view known) {
  if (type == "image" || type == "document") {
    return Error(ErrorCode::kUnsupported,
                 at + " has type '" + type + "': the models of this server take text only")
        .WithParam(at)
        .WithReason("unsupported_value");
  }
  return BadValue(at + ".type",
                  at + ".type must be " + std::string(known) + ", got " + ShortForm(Json(type)));
}

// Calls `read(block, path, type)` for the blocks of a list.
template <class Read>
void ForEachBlock(const Json& blocks, const std::string& at, Read&& read) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string path = BlockPath(at, i);
    if (!blocks[i].is_object()) throw WrongType(path, "a content block", blocks[i]);
    FieldReader block(blocks[i], path);
    read(block, path, block.RequiredString("type"));
  }
}

// The text parts of a string or a list of text blocks; an empty list without content.
Json ReadTextParts(const Json* content, const std::string& at) {
  Json parts = Json::array();
  if (content == nullptr) return parts;
  if (content->is_string()) {
    parts.push_back(TextPart(content->get<std::string>()));
    return parts;
  }
  if (!content->is_array()) throw WrongType(at, "a string or a list of content blocks", *content);
  ForEachBlock(*content, at,
               [&](FieldReader& block, const std::string& path, const std::string& type) {
                 if (type != "text") throw UnknownBlock(path, type, "text");
                 parts.push_back(TextPart(block.RequiredString("text")));
               });
  return parts;
}

// Collects the chat messages of the turns.
class History {
 public:
  History(Json& messages, const std::function<bool()>& takes_late_system)
      : messages_(messages), takes_late_system_(takes_late_system) {}

  void AddSystem(const Json* content, const std::string& at) {
    Json parts = ReadTextParts(content, at);
    for (Json& part : parts) {
      const auto& text = part["text"].get_ref<const std::string&>();
      const bool is_billing = content->is_array() && text.starts_with(kBillingHeader);
      if (!text.empty() && !is_billing) AddPart(SystemTurn(), std::move(part));
    }
  }

  void AddTurn(const Json& message, const std::string& at) {
    if (!message.is_object()) throw WrongType(at, "an object", message);
    FieldReader members(message, at);
    const std::string role = members.RequiredString("role");
    if (role != "user" && role != "assistant" && role != "system") {
      throw BadValue(at + ".role",
                     at + ".role must be user, assistant or system, got " + ShortForm(Json(role)));
    }
    const Json* content = members.Any("content");
    const std::string path = at + ".content";
    if (content == nullptr) throw MissingField(path);
    if (!content->is_string() && !content->is_array()) {
      throw WrongType(path, "a string or a list of content blocks", *content);
    }
    ends_with_text_ = false;
    is_empty_ = true;
    const bool is_assistant = role == "assistant";
    if (role == "system") {
      AddSystem(content, path);
    } else if (content->is_string()) {
      AddText(role, content->get<std::string>());
    } else if (is_assistant) {
      AddAnswer(*content, path);
    } else {
      AddQuestion(*content, path);
    }
    last_is_assistant_ = is_assistant;
  }

  // Whether the answer continues the last turn, whose path is `at`. Call after the last turn.
  bool IsContinued(const std::string& at) const {
    if (!last_is_assistant_ || is_empty_) return false;
    if (ends_with_text_) return true;
    throw BadValue(at + ".content",
                   at + ".content must end with text, because the answer continues a last message "
                        "of the assistant; results of tools follow in a user message");
  }

 private:
  // The last message, which has this role.
  Json& Turn(std::string_view role) {
    if (messages_.empty() || !IsString(messages_.back()["role"], role)) {
      messages_.push_back(ChatMessage(role));
    }
    return messages_.back();
  }

  // The system message that takes the next part.
  Json& SystemTurn() {
    const bool is_late = !messages_.empty() && !IsString(messages_.back()["role"], "system");
    if (!is_late) return Turn("system");
    if (!keeps_late_) keeps_late_ = !takes_late_system_ || takes_late_system_();
    if (*keeps_late_) return Turn("system");
    if (!IsString(messages_.front()["role"], "system")) {
      messages_.insert(messages_.begin(), ChatMessage("system"));
    }
    return messages_.front();
  }

  static void AddPart(Json& message, Json part) {
    Json& content = message["content"];
    if (content.is_null()) content = Json::array();
    content.push_back(std::move(part));
  }

  void AddText(std::string_view role, std::string text) {
    ends_with_text_ = !text.empty();
    // Chat refuses an empty answer, and Anthropic allows one as the last message.
    if (text.empty() && role == "assistant") return;
    is_empty_ = false;
    AddPart(Turn(role), TextPart(std::move(text)));
  }

  void AddQuestion(const Json& blocks, const std::string& at) {
    if (blocks.empty()) throw BadValue(at, at + " must not be an empty list");
    ForEachBlock(blocks, at,
                 [&](FieldReader& block, const std::string& path, const std::string& type) {
                   if (type == "text") {
                     AddText("user", block.RequiredString("text"));
                   } else if (type == "tool_result") {
                     AddResult(block, path);
                   } else {
                     throw UnknownBlock(path, type, "text or tool_result");
                   }
                 });
  }

  void AddResult(FieldReader& block, const std::string& at) {
    const std::string id = block.RequiredString("tool_use_id");
    Json parts = ReadTextParts(block.Any("content"), at + ".content");
    if (parts.empty()) parts.push_back(TextPart(""));
    if (block.Bool("is_error").value_or(false)) {
      std::string& text = parts.front()["text"].get_ref<std::string&>();
      if (!text.starts_with(kFailed)) text.insert(0, kFailed);
    }
    Json message = ChatMessage("tool");
    message["tool_call_id"] = id;
    if (const auto name = tool_names_.find(id); name != tool_names_.end()) {
      message["name"] = name->second;
    }
    message["content"] = std::move(parts);
    messages_.push_back(std::move(message));
  }

  void AddAnswer(const Json& blocks, const std::string& at) {
    ForEachBlock(
        blocks, at, [&](FieldReader& block, const std::string& path, const std::string& type) {
          if (type == "text") {
            AddText("assistant", block.RequiredString("text"));
          } else if (type == "thinking") {
            AddThought(block.RequiredString("thinking"));
          } else if (type == "tool_use") {
            AddCall(block, path);
          } else if (type != "redacted_thinking") {
            throw UnknownBlock(path, type, "text, thinking, redacted_thinking or tool_use");
          }
        });
  }

  void AddThought(std::string thought) {
    if (thought.empty()) return;
    ends_with_text_ = is_empty_ = false;
    Json& present = Turn("assistant")["reasoning_content"];
    if (present.is_null()) {
      present = std::move(thought);
    } else {
      present.get_ref<std::string&>() += "\n" + thought;
    }
  }

  void AddCall(FieldReader& block, const std::string& at) {
    ends_with_text_ = is_empty_ = false;
    std::string id = block.RequiredString("id");
    std::string name = block.RequiredString("name");
    if (name.empty()) throw BadValue(at + ".name", at + ".name must not be empty");
    const Json* input = block.Object("input");
    if (input == nullptr) throw MissingField(at + ".input");
    Json call = Json::object();
    call["id"] = id;
    call["type"] = "function";
    call["function"]["name"] = name;
    call["function"]["arguments"] = *input;
    Json& calls = Turn("assistant")["tool_calls"];
    if (calls.is_null()) calls = Json::array();
    calls.push_back(std::move(call));
    tool_names_[std::move(id)] = std::move(name);
  }

  Json& messages_;
  const std::function<bool()>& takes_late_system_;
  std::optional<bool> keeps_late_;                 // its answer
  std::map<std::string, std::string> tool_names_;  // by the id of the call
  // Of the last turn:
  bool last_is_assistant_ = false;
  bool ends_with_text_ = false;
  bool is_empty_ = true;
};

}  // namespace

bool ReadMessagesHistory(FieldReader& reader, const std::function<bool()>& takes_late_system,
                         Json& chat_messages) {
  const Json* messages = reader.Array("messages");
  if (messages == nullptr) throw MissingField("messages");
  if (messages->empty() || messages->size() > engine::kMaxMessages) {
    throw BadValue("messages", "messages must have 1 to " + std::to_string(engine::kMaxMessages) +
                                   " entries, got " + std::to_string(messages->size()));
  }
  History history(chat_messages, takes_late_system);
  history.AddSystem(reader.Any("system"), "system");
  for (size_t i = 0; i < messages->size(); ++i) {
    history.AddTurn((*messages)[i], BlockPath("messages", i));
  }
  return history.IsContinued(BlockPath("messages", messages->size() - 1));
}

}  // namespace tandem::server
