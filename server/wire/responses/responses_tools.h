#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "server/wire/field_reader.h"

namespace tandem::server {

// A declared tool of the Responses API.
struct ResponsesTool {
  std::string name;        // as declared
  std::string name_space;  // the namespace that holds it; empty: none
  bool is_custom = false;
};

// `tools` of a request, translated.
struct ResponsesTools {
  std::vector<nlohmann::ordered_json> chat;  // nested, as chat completions have them
  std::vector<std::string> paths;            // the field that chat[i] comes from
  // By the name that the model sees. It is the declared one. If two namespaces have a tool of that
  // name, the later one is NAMESPACE__NAME.
  std::map<std::string, ResponsesTool> by_chat_name;
  std::vector<nlohmann::ordered_json> echoed;  // the served tools, with all of their members
  std::vector<std::string> ignored;            // kinds that the server cannot run, each once

  // The name that the model sees; `name` itself if no such tool is declared.
  std::string ChatName(const std::string& name, const std::string& name_space) const;
};

// Whether a tool of this type runs at OpenAI, so that this server leaves it out.
bool IsHostedTool(std::string_view type);

// Reads `tools`. Leaves hosted tools out. Throws kInvalidArgument for other unknown types.
ResponsesTools ReadResponsesTools(FieldReader& reader);

// The chat form of `tool_choice`. Throws kInvalidArgument for a choice that forces a hosted tool.
// REQUIRES: `choice` is the value of the field, not null.
nlohmann::ordered_json TranslateToolChoice(const nlohmann::ordered_json& choice,
                                           const ResponsesTools& tools);

}  // namespace tandem::server
