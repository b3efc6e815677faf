#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tandem::engine {

// How a format without quotes writes the value of a parameter whose answer obeys a grammar.
struct ParameterForm {
  bool is_text = false;              // plain text; else JSON, so that a text has quotation marks
  std::vector<std::string> choices;  // the only texts; empty: any text
};

// Decided by the parameter's schema alone, so that the grammar and the parser agree. Only schemas
// that allow any text, or a list of simple texts, are text.
ParameterForm FormOf(const nlohmann::ordered_json& schema);

}  // namespace tandem::engine
