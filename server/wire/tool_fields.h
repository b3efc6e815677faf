#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/wire/field_reader.h"

namespace tandem::server {

// `tools`, `tool_choice` and `parallel_tool_calls`, checked.
struct ToolFields {
  // All tools as the client sent them; null: none.
  std::shared_ptr<const nlohmann::ordered_json> declared;
  // The tools that the template renders; null: none. The handler may rewrite them.
  std::shared_ptr<const nlohmann::ordered_json> tools;
  // The subset that the answer may call; null: none. `tool_choice` may narrow it.
  std::shared_ptr<const nlohmann::ordered_json> callable;
  bool is_forced = false;   // the answer must be a call
  bool is_parallel = true;  // false: one call at most
};

// Reads the three fields. Throws kUnsupported (`unsupported_parameter`) for forced calls and for
// inputs with a grammar in a build without llguidance.
ToolFields ReadToolFields(FieldReader& reader);

}  // namespace tandem::server
