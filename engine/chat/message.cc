#include "engine/chat/message.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxArgumentsDepth = 64;

// Whether brackets outside of strings nest no deeper than the templates can take. Malformed text
// may pass; the parser finds that.
bool IsShallow(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxArgumentsDepth) return false;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return true;
}

std::string JoinParts(const Json& parts, const std::string& param) {
  std::string text;
  for (const Json& part : parts) {
    const char* field = "text";
    if (part.is_object() && part.value("type", Json()) == "refusal") field = "refusal";
    if (!part.is_object() || !part.contains(field) || !part.at(field).is_string()) {
      throw Error(ErrorCode::kInvalidArgument, param + " has a part that is not text")
          .WithParam(param);
    }
    if (&part != &parts.front()) text += '\n';
    text += part.at(field).get_ref<const std::string&>();
  }
  return text;
}

void ParseArguments(Json& tool_call) {
  if (!tool_call.is_object() || !tool_call.contains("function")) return;
  Json& function = tool_call.at("function");
  if (!function.is_object() || !function.contains("arguments")) return;
  Json& arguments = function.at("arguments");
  if (!arguments.is_string()) return;
  const std::string& text = arguments.get_ref<const std::string&>();
  if (!IsShallow(text)) return;
  Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object()) arguments = std::move(parsed);
}

}  // namespace

Json NormalizeMessages(const Json& messages, const NormalizeOptions& options) {
  if (!messages.is_array()) {
    throw Error(ErrorCode::kInvalidArgument, "messages must be an array").WithParam("messages");
  }
  Json normalized = messages;
  for (size_t i = 0; i < normalized.size(); ++i) {
    Json& message = normalized[i];
    const std::string param = "messages[" + std::to_string(i) + "]";
    if (!message.is_object()) {
      throw Error(ErrorCode::kInvalidArgument, param + " must be an object").WithParam(param);
    }
    if (options.developer_as_system && message.value("role", Json()) == "developer") {
      message["role"] = "system";
    }
    Json& content = message["content"];
    if (content.is_array()) content = JoinParts(content, param + ".content");
    if (content.is_null()) content = "";
    if (message.contains("tool_calls") && message.at("tool_calls").is_array()) {
      for (Json& tool_call : message.at("tool_calls")) ParseArguments(tool_call);
    }
  }
  return normalized;
}

}  // namespace tandem::engine
