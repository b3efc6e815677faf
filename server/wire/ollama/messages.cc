#include "server/wire/ollama/messages.h"

#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/io/json.h"
#include "server/wire/chat_request.h"
#include "server/wire/field_reader.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

// Calls without a result so far. Ollama's clients name the tool; a chat needs the id of the call.
class WaitingCalls {
 public:
  void Add(const std::string& name, const std::string& id) {
    by_name_[name].push_back(id);
    in_order_.push_back(id);
  }

  // The id of the first waiting call of the tool, else of any tool; nullopt if none waits.
  std::optional<std::string> Take(const std::optional<std::string>& name) {
    const auto named = name ? by_name_.find(*name) : by_name_.end();
    if (named != by_name_.end()) {
      if (auto id = TakeFirst(named->second)) return id;
    }
    return TakeFirst(in_order_);
  }

 private:
  // Skips calls that the other list has taken.
  std::optional<std::string> TakeFirst(std::deque<std::string>& ids) {
    while (!ids.empty()) {
      std::string id = std::move(ids.front());
      ids.pop_front();
      if (taken_.insert(id).second) return id;
    }
    return std::nullopt;
  }

  std::map<std::string, std::deque<std::string>> by_name_;
  std::deque<std::string> in_order_;
  std::set<std::string> taken_;
};

class OllamaHistory {
 public:
  void Add(const Json& message, const std::string& at) {
    if (!message.is_object()) throw WrongType(at, "an object", message);
    FieldReader members(message, at);
    const std::string role = members.RequiredString("role");
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      throw BadValue(at + ".role", at + ".role must be system, user, assistant or tool, got " +
                                       ShortForm(Json(role)));
    }
    RefuseImages(members.Array("images"), at + ".images");
    Json out = Json::object();
    out["role"] = role;
    out["content"] = members.String("content").value_or("");
    if (role == "assistant") AddAnswer(members, at, out);
    if (role == "tool") AddResult(members, out);
    messages_.push_back(std::move(out));
  }

  Json Take() { return std::move(messages_); }

 private:
  void AddAnswer(FieldReader& members, const std::string& at, Json& out) {
    const auto thinking = members.String("thinking");
    if (thinking && !thinking->empty()) out["reasoning_content"] = *thinking;
    const Json* calls = members.Array("tool_calls");
    if (calls == nullptr || calls->empty()) return;
    Json& list = out["tool_calls"];
    for (size_t i = 0; i < calls->size(); ++i) {
      list.push_back(ReadCall((*calls)[i], at + ".tool_calls[" + std::to_string(i) + "]"));
    }
  }

  Json ReadCall(const Json& call, const std::string& at) {
    if (!call.is_object()) throw WrongType(at, "an object", call);
    FieldReader members(call, at);
    const Json* given = members.Object("function");
    if (given == nullptr) throw MissingField(at + ".function");
    FieldReader function(*given, at + ".function");
    const std::string name = function.RequiredString("name");
    if (name.empty()) throw BadValue(at + ".function.name", at + ".function.name is empty");
    const Json* arguments = function.Any("arguments");
    if (arguments != nullptr && !arguments->is_object()) {
      throw WrongType(at + ".function.arguments", "an object", *arguments);
    }
    ++n_calls_;
    const std::string id = members.String("id").value_or("call_" + std::to_string(n_calls_));
    waiting_.Add(name, id);
    Json out = Json::object();
    out["id"] = id;
    out["type"] = "function";
    out["function"]["name"] = name;
    out["function"]["arguments"] = arguments == nullptr ? Json::object() : *arguments;
    return out;
  }

  void AddResult(FieldReader& members, Json& out) {
    auto name = members.String("tool_name");
    if (!name) name = members.String("name");
    auto id = members.String("tool_call_id");
    if (!id) id = waiting_.Take(name);
    // A result without a call in the history, as after a cut of the history.
    if (!id) id = "call_" + std::to_string(++n_calls_);
    out["tool_call_id"] = *id;
    if (name) out["name"] = *name;
  }

  Json messages_ = Json::array();
  WaitingCalls waiting_;
  size_t n_calls_ = 0;
};

}  // namespace

void RefuseImages(const Json* images, const std::string& path) {
  if (images == nullptr || images->empty()) return;
  throw Error(ErrorCode::kUnsupported,
              path + " is not supported: the models of this server take text only")
      .WithParam(path)
      .WithReason("unsupported_value");
}

Json TranslateOllamaMessages(const Json& messages) {
  CheckMessageCount(messages);
  OllamaHistory history;
  for (size_t i = 0; i < messages.size(); ++i) {
    history.Add(messages[i], "messages[" + std::to_string(i) + "]");
  }
  return history.Take();
}

}  // namespace tandem::server
