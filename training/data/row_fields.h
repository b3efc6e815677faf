#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

// Access to a row's columns for the parsers of rows (example.cc, preference_rows.cc). Errors name
// the column.
namespace tandem::training::row_fields {

[[noreturn]] void Throw(const std::string& field, const std::string& what);

// Null when the column is absent or null, or when `column` is empty.
const nlohmann::ordered_json* FindColumn(const nlohmann::ordered_json& row,
                                         const std::string& column);
const nlohmann::ordered_json& Column(const nlohmann::ordered_json& row, const std::string& column);
const std::string& Text(const nlohmann::ordered_json& value, const std::string& column);
std::string TextOr(const nlohmann::ordered_json& row, const std::string& column);
bool IsBlank(const std::string& text);
// A text that is not blank.
const std::string& Said(const nlohmann::ordered_json& value, const std::string& column);

}  // namespace tandem::training::row_fields
