#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/wire/field_reader.h"

namespace tandem::server {

// `tools`, `tool_choice` and `parallel_tool_calls`, checked.
struct ToolFields {
  // The tools that the template renders; null: none.
  std::shared_ptr<const nlohmann::ordered_json> tools;
  // The subset that the answer may call; null: none. `tool_choice` may narrow it.
  std::shared_ptr<const nlohmann::ordered_json> callable;
  bool is_parallel = true;  // false: the answer shows the first call only
};

// Reads the three fields. Throws kUnsupported (`unsupported_parameter`) for a choice that forces a
// call: only a grammar can force one, and this version has none.
ToolFields ReadToolFields(FieldReader& reader);

}  // namespace tandem::server
