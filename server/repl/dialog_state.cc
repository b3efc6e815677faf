#include "server/repl/dialog_state.h"

#include <fcntl.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/io/posix_file.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxChatBytes = size_t{64} << 20;
constexpr size_t kMaxMessages = 4096;

std::string Dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Json MessageJson(const SpokenMessage& message) {
  Json out = {{"role", message.role}, {"content", message.content}};
  if (!message.reasoning.empty()) out["reasoning_content"] = message.reasoning;
  if (!message.tool_calls.empty()) out["tool_calls"] = Json::parse(message.tool_calls);
  return out;
}

std::string TextMember(const Json& object, const char* name, const std::string& where) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  throw Error(ErrorCode::kInvalidArgument, where + ": " + name + " must be a string");
}

SpokenMessage ParseMessage(const Json& json, const std::string& where) {
  if (!json.is_object()) throw Error(ErrorCode::kInvalidArgument, where + " must be an object");
  SpokenMessage message{TextMember(json, "role", where), TextMember(json, "content", where)};
  if (message.role != "system" && message.role != "user" && message.role != "assistant" &&
      message.role != "tool") {
    throw Error(ErrorCode::kInvalidArgument,
                where + ": role must be system, user, assistant or tool");
  }
  message.reasoning = TextMember(json, "reasoning_content", where);
  if (json.contains("tool_calls") && json["tool_calls"].is_array()) {
    message.tool_calls = Dump(json["tool_calls"]);
  }
  return message;
}

DialogState ParseDialog(const Json& json, const std::string& source) {
  const auto list = json.find("messages");
  if (!json.is_object() || list == json.end() || !list->is_array()) {
    throw Error(ErrorCode::kInvalidArgument,
                source + " must be a chat: a JSON object with an array `messages`");
  }
  if (list->size() > kMaxMessages) {
    throw Error(ErrorCode::kInvalidArgument,
                source + " has more than " + std::to_string(kMaxMessages) + " messages");
  }
  DialogState dialog;
  for (size_t i = 0; i < list->size(); ++i) {
    SpokenMessage message =
        ParseMessage((*list)[i], source + ": messages[" + std::to_string(i) + "]");
    if (i == 0 && message.role == "system") {
      dialog.system = std::move(message.content);
    } else {
      dialog.Add(std::move(message));
    }
  }
  if (json.contains("settings") && json["settings"].is_object()) {
    for (const auto& [name, value] : json["settings"].items()) {
      dialog.settings.SetJson(name, Dump(value));
    }
  }
  return dialog;
}

void AppendLine(const fs::path& file, const std::string& line) {
  const engine::FileDescriptor opened(
      open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (opened.get() < 0) engine::ThrowSystemError("open", file, errno);
  engine::WriteAll(opened, std::as_bytes(std::span(line)), file);
}

}  // namespace

std::optional<std::string> DialogState::DropAnswer() {
  size_t n = messages_.size();
  while (n > 0 && messages_[n - 1].role != "user") --n;
  if (n == 0 || n == messages_.size()) return std::nullopt;
  messages_.resize(n);
  return messages_.back().content;
}

bool DialogState::DropTurn() {
  size_t n = messages_.size();
  while (n > 0 && messages_[n - 1].role != "user") --n;
  if (n == 0) return false;
  messages_.resize(n - 1);
  return true;
}

std::string DialogState::MessagesJson() const {
  Json list = Json::array();
  if (!system.empty()) list.push_back({{"role", "system"}, {"content", system}});
  for (const SpokenMessage& message : messages_) list.push_back(MessageJson(message));
  return Dump(list);
}

std::string DialogState::RequestJson(const std::string& model) const {
  Json request = {{"model", model}, {"messages", Json::parse(MessagesJson())}};
  for (const auto& [name, value] : settings.values()) {
    if (name == "think") {
      request["chat_template_kwargs"] = {{"enable_thinking", Json::parse(value)}};
    } else {
      request[name] = Json::parse(value);
    }
  }
  if (!tools_.empty()) request["tools"] = Json::parse(tools_);
  return Dump(request);
}

void DialogState::LoadTools(const fs::path& file) {
  const std::string text = engine::ReadWholeFile(file, kMaxChatBytes);
  const Json tools = Json::parse(text, nullptr, false);
  if (!tools.is_array()) {
    throw Error(ErrorCode::kInvalidArgument, file.string() + " must be a JSON array of tools");
  }
  tools_ = Dump(tools);
}

void DialogState::Save(const fs::path& file, const std::string& model) const {
  const Json messages = Json::parse(MessagesJson());
  if (file.extension() == ".jsonl") return AppendLine(file, Dump({{"messages", messages}}) + "\n");
  Json out = {{"model", model}, {"settings", Json::object()}, {"messages", messages}};
  for (const auto& [name, value] : settings.values()) out["settings"][name] = Json::parse(value);
  engine::WriteFileAtomically(file, Dump(out, 1) + "\n");
}

void DialogState::Load(const fs::path& file) {
  const std::string text = engine::ReadWholeFile(file, kMaxChatBytes);
  DialogState loaded = ParseDialog(engine::ParseUntrustedJson(text, file.string()), file.string());
  loaded.tools_ = std::move(tools_);
  *this = std::move(loaded);
}

}  // namespace tandem::server
