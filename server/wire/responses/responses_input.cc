#include "server/wire/responses/responses_input.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "engine/io/json.h"
#include "server/wire/field_reader.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using engine::IsString;

// Chat completions take as many messages.
constexpr size_t kMostItems = 4096;
constexpr size_t kMostIdBytes = 128;
constexpr size_t kMostIgnoredItems = 32;  // names of skipped types

// Beginnings of the types of items that tools at OpenAI write.
constexpr std::array<std::string_view, 12> kHostedItems = {
    "web_search_",       "file_search_", "computer_", "code_interpreter_",
    "image_generation_", "local_shell_", "mcp_",      "shell_",
    "apply_patch_",      "tool_search_", "x_search_", "compaction"};

std::string At(const std::string& list, size_t i) { return list + "[" + std::to_string(i) + "]"; }

std::string ItemType(const Json& item) {
  const auto found = item.find("type");
  if (found != item.end() && found->is_string()) return found->get<std::string>();
  // OpenAI's SDKs leave the type of messages and references out.
  if (item.contains("role")) return "message";
  return item.contains("id") ? "item_reference" : "";
}

// A text part of a message or of a tool's output, or a refusal.
Json ReadPart(const Json& part, const std::string& role, const std::string& at) {
  if (!part.is_object()) throw WrongType(at, "an object", part);
  FieldReader members(part, at);
  const std::string type = members.RequiredString("type");
  const bool is_assistant = role == "assistant";
  if (type == "refusal" && is_assistant) {
    return {{"type", "refusal"}, {"refusal", members.RequiredString("refusal")}};
  }
  if (type == "input_text" || type == "output_text" || type == "text") {
    Json out = {{"type", is_assistant ? "output_text" : "input_text"},
                {"text", members.RequiredString("text")}};
    if (is_assistant) out["annotations"] = Json::array();
    return out;
  }
  if (type == "input_image" || type == "input_file" || type == "input_audio" ||
      type == "computer_screenshot") {
    throw Error(ErrorCode::kUnsupported,
                at + " has type '" + type + "': this model takes text only")
        .WithParam(at)
        .WithReason("unsupported_value");
  }
  throw BadValue(at + ".type", at + ".type must be input_text, output_text or text" +
                                   (is_assistant ? " or refusal" : "") + ", got " +
                                   ShortForm(Json(type)));
}

// `content` of a message as parts.
Json ReadContent(const Json& item, const std::string& role, const std::string& at) {
  const auto content = item.find("content");
  if (content == item.end() || content->is_null()) throw MissingField(at + ".content");
  if (content->is_string()) {
    return Json::array({ReadPart({{"type", "text"}, {"text", *content}}, role, at + ".content")});
  }
  if (!content->is_array()) {
    throw WrongType(at + ".content", "a string or an array of parts", *content);
  }
  Json parts = Json::array();
  for (size_t i = 0; i < content->size(); ++i) {
    parts.push_back(ReadPart((*content)[i], role, At(at + ".content", i)));
  }
  return parts;
}

// The parts as those of a chat's message.
Json ChatParts(const Json& parts) {
  Json out = Json::array();
  for (const Json& part : parts) {
    if (part["type"] == "refusal") {
      out.push_back(part);
    } else {
      out.push_back({{"type", "text"}, {"text", part["text"]}});
    }
  }
  return out;
}

std::string JoinedText(const Json& parts) {
  std::string text;
  for (const Json& part : parts) {
    if (&part != &parts[0]) text += '\n';
    text += part.contains("text") ? part["text"].get_ref<const std::string&>()
                                  : part["refusal"].get_ref<const std::string&>();
  }
  return text;
}

// Appends to a member that is text, or begins it.
void AddText(Json& message, const char* name, const std::string& text, std::string_view between) {
  Json& member = message[name];
  if (!member.is_string()) member = std::string();
  auto& joined = member.get_ref<std::string&>();
  if (!joined.empty()) joined += between;
  joined += text;
}

class MessageList {
 public:
  MessageList(const ResponsesTools& tools, const ResponsesLookup& lookup, ResponsesInput& out)
      : tools_(tools), lookup_(lookup), out_(out) {}

  void AddInstructions(const std::string& text) { AddFront(text, "instructions"); }

  void AddItems(const Json& items, const std::string& path) {
    for (size_t i = 0; i < items.size(); ++i) Add(items[i], At(path, i));
  }

  void Add(const Json& item, const std::string& at) {
    if (!item.is_object()) throw WrongType(at, "an object", item);
    if (out_.items.size() >= kMostItems) {
      throw BadValue("input", "input must have at most " + std::to_string(kMostItems) +
                                  " items, those of previous_response_id included");
    }
    const std::string type = ItemType(item);
    if (type == "message") return AddMessage(item, at);
    if (type == "function_call" || type == "custom_tool_call") return AddCall(item, type, at);
    if (type == "function_call_output" || type == "custom_tool_call_output") {
      return AddOutput(item, type, at);
    }
    if (type == "reasoning") return AddReasoning(item, at);
    if (type == "item_reference") return AddReference(item, at);
    const bool is_hosted =
        std::any_of(kHostedItems.begin(), kHostedItems.end(),
                    [&](std::string_view hosted) { return type.starts_with(hosted); });
    if (!is_hosted) {
      throw BadValue(at + ".type",
                     at +
                         ".type must be message, function_call, function_call_output, "
                         "custom_tool_call, custom_tool_call_output, reasoning or "
                         "item_reference, got " +
                         ShortForm(Json(type)));
    }
    std::string ignored = "input." + type;
    auto& all = out_.ignored;
    if (all.size() < kMostIgnoredItems && std::find(all.begin(), all.end(), ignored) == all.end()) {
      all.push_back(std::move(ignored));
    }
  }

 private:
  // An item of the stored form: the type, then the id if the client has given one.
  Json Keep(FieldReader& members, const std::string& type) {
    Json kept;
    if (const auto id = members.String("id"); id && !id->empty() && id->size() <= kMostIdBytes) {
      kept["id"] = *id;
    }
    kept["type"] = type;
    const bool was_cut = members.String("status").value_or("") == "incomplete";
    kept["status"] = was_cut ? "incomplete" : "completed";
    return kept;
  }

  Json& NewMessage(const std::string& role, const std::string& at) {
    is_front_ = false;
    is_assistant_ = role == "assistant";
    out_.paths.push_back(at);
    return out_.messages.emplace_back(Json{{"role", role}});
  }

  // The message of the assistant's turn.
  Json& Turn(const std::string& at) {
    return is_assistant_ ? out_.messages.back() : NewMessage("assistant", at);
  }

  // System messages before all others are one message.
  void AddFront(const std::string& text, const std::string& at) {
    if (out_.messages.empty()) NewMessage("system", at);
    is_front_ = true;
    AddText(out_.messages.back(), "content", text, "\n\n");
  }

  void AddMessage(const Json& item, const std::string& at) {
    FieldReader members(item, at);
    const std::string role = members.RequiredString("role");
    if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
      throw BadValue(at + ".role", at + ".role must be user, assistant, system or developer, got " +
                                       ShortForm(Json(role)));
    }
    Json parts = ReadContent(item, role, at);
    Json kept = Keep(members, "message");
    kept["role"] = role;
    kept["content"] = parts;
    out_.items.push_back(std::move(kept));
    const bool is_system = role == "system" || role == "developer";
    if (is_system && (is_front_ || out_.messages.empty())) return AddFront(JoinedText(parts), at);
    if (role != "assistant") {
      NewMessage(role, at)["content"] = ChatParts(parts);
      return;
    }
    // Text after text without a call between is another message, as the client wrote it.
    if (is_assistant_ && out_.messages.back().contains("content") &&
        !out_.messages.back().contains("tool_calls")) {
      is_assistant_ = false;
    }
    Json& turn = Turn(at);
    if (turn.contains("content")) {
      AddText(turn, "content", JoinedText(parts), "\n");
    } else if (turn.contains("tool_calls") || turn.contains("reasoning_content")) {
      turn["content"] = JoinedText(parts);
    } else {
      turn["content"] = ChatParts(parts);
    }
  }

  void AddCall(const Json& item, const std::string& type, const std::string& at) {
    const bool is_custom = type == "custom_tool_call";
    const char* written = is_custom ? "input" : "arguments";
    FieldReader members(item, at);
    const std::string call_id = members.RequiredString("call_id");
    const std::string name = members.RequiredString("name");
    const std::string name_space = members.String("namespace").value_or(std::string());
    const std::string text = members.RequiredString(written);
    Json kept = Keep(members, type);
    const bool was_cut = kept["status"] == "incomplete";
    kept["call_id"] = call_id;
    kept["name"] = name;
    if (!name_space.empty()) kept["namespace"] = name_space;
    kept[written] = text;
    out_.items.push_back(std::move(kept));

    // The model never made a call that the token limit cut.
    if (was_cut) return;
    const char* kind = is_custom ? "custom" : "function";
    Json called = {{"name", tools_.ChatName(name, name_space)}, {written, text}};
    Json call = {{"id", call_id}, {"type", kind}};
    call[kind] = std::move(called);
    Json& turn = Turn(at);
    if (turn.contains("content") && turn["content"].is_array()) {
      turn["content"] = JoinedText(turn["content"]);
    }
    if (!turn.contains("tool_calls")) turn["tool_calls"] = Json::array();
    turn["tool_calls"].push_back(std::move(call));
  }

  void AddOutput(const Json& item, const std::string& type, const std::string& at) {
    FieldReader members(item, at);
    const std::string call_id = members.RequiredString("call_id");
    const Json* output = members.Any("output");
    if (output == nullptr) throw MissingField(at + ".output");
    std::string text;
    if (output->is_string()) {
      text = output->get<std::string>();
    } else if (output->is_array()) {
      Json parts = Json::array();
      for (size_t i = 0; i < output->size(); ++i) {
        parts.push_back(ReadPart((*output)[i], "tool", At(at + ".output", i)));
      }
      text = JoinedText(parts);
    } else {
      throw WrongType(at + ".output", "a string or an array of text parts", *output);
    }
    Json kept = Keep(members, type);
    kept["call_id"] = call_id;
    kept["output"] = *output;
    out_.items.push_back(std::move(kept));
    Json& message = NewMessage("tool", at);
    message["tool_call_id"] = call_id;
    message["content"] = text;
  }

  // The text of `content`, or else of `summary`: the parts are {"type": …, "text": …}.
  std::string ReadThought(FieldReader& members, const char* name, const std::string& at) {
    const Json* parts = members.Array(name);
    std::string text;
    for (size_t i = 0; parts != nullptr && i < parts->size(); ++i) {
      const std::string part_at = At(at + "." + name, i);
      if (!(*parts)[i].is_object()) throw WrongType(part_at, "an object", (*parts)[i]);
      FieldReader part((*parts)[i], part_at);
      if (!text.empty()) text += '\n';
      text += part.RequiredString("text");
    }
    return text;
  }

  void AddReasoning(const Json& item, const std::string& at) {
    FieldReader members(item, at);
    const std::string thought = ReadThought(members, "content", at);
    const std::string summary = ReadThought(members, "summary", at);
    Json kept = Keep(members, "reasoning");
    for (const char* name : {"summary", "content", "encrypted_content"}) {
      const Json* given = members.Any(name);
      if (given != nullptr) kept[name] = *given;
    }
    if (!kept.contains("summary")) kept["summary"] = Json::array();
    out_.items.push_back(std::move(kept));
    const std::string& text = thought.empty() ? summary : thought;
    if (text.empty()) return;
    // A thought after text begins the next message.
    if (is_assistant_ && out_.messages.back().contains("content") &&
        !out_.messages.back().contains("tool_calls")) {
      is_assistant_ = false;
    }
    AddText(Turn(at), "reasoning_content", text, "\n");
  }

  void AddReference(const Json& item, const std::string& at) {
    FieldReader members(item, at);
    const std::string id = members.RequiredString("id");
    const std::optional<Json> found = lookup_.find_item ? lookup_.find_item(id) : std::nullopt;
    if (!found) {
      throw Error(ErrorCode::kInvalidArgument, at + ".id names no stored item, got " +
                                                   ShortForm(Json(id)) + ": send the item itself")
          .WithParam(at + ".id")
          .WithReason("item_not_found");
    }
    Add(*found, at);
  }

  const ResponsesTools& tools_;
  const ResponsesLookup& lookup_;
  ResponsesInput& out_;
  bool is_front_ = false;      // the last message is the system message at the front
  bool is_assistant_ = false;  // the last message is the assistant's and may grow
};

const char* IdPrefix(const Json& item) {
  const auto& type = item["type"].get_ref<const std::string&>();
  if (type == "function_call") return "fc_";
  if (type == "function_call_output") return "fco_";
  if (type == "custom_tool_call") return "ctc_";
  if (type == "custom_tool_call_output") return "ctco_";
  return type == "reasoning" ? "rs_" : "msg_";
}

}  // namespace

ResponsesInput ReadResponsesInput(const std::optional<std::string>& instructions,
                                  const Json& stored, const Json& input,
                                  const ResponsesTools& tools, const ResponsesLookup& lookup) {
  ResponsesInput out;
  MessageList list(tools, lookup, out);
  if (instructions) list.AddInstructions(*instructions);
  list.AddItems(stored, "previous_response_id");
  if (input.is_string()) {
    list.Add({{"role", "user"}, {"content", input}}, "input");
  } else if (!input.is_array()) {
    throw WrongType("input", "a string or an array of items", input);
  } else if (input.empty()) {
    throw BadValue("input", "input must have at least one item");
  } else {
    list.AddItems(input, "input");
  }
  if (out.items.empty()) {
    throw BadValue("input",
                   "input must have an item that this server reads: the items of tools "
                   "that run at OpenAI are skipped");
  }
  // A chat's message needs content, unless it has calls or a thought.
  for (Json& message : out.messages) {
    if (!message.contains("content") && message["role"] != "assistant") message["content"] = "";
  }
  return out;
}

void AssignItemIds(std::vector<Json>& items, const std::string& stem) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].contains("id")) continue;
    Json with_id = {{"id", IdPrefix(items[i]) + stem + "i" + std::to_string(i)}};
    for (auto& [name, value] : items[i].items()) with_id[name] = std::move(value);
    items[i] = std::move(with_id);
  }
}

}  // namespace tandem::server
