#include "training/data/row_fields.h"

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/quoted.h"

namespace tandem::training::row_fields {

using Json = nlohmann::ordered_json;

void Throw(const std::string& field, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, field + " " + what);
}

const Json* FindColumn(const Json& row, const std::string& column) {
  if (column.empty()) return nullptr;
  const auto found = row.find(column);
  return found == row.end() || found->is_null() ? nullptr : &*found;
}

const Json& Column(const Json& row, const std::string& column) {
  const Json* value = FindColumn(row, column);
  if (value == nullptr) Throw(Quoted(column, 40), "is missing");
  return *value;
}

const std::string& Text(const Json& value, const std::string& column) {
  if (!value.is_string()) {
    Throw(Quoted(column, 40), std::string("must be a text, got ") + value.type_name());
  }
  return value.get_ref<const std::string&>();
}

std::string TextOr(const Json& row, const std::string& column) {
  const Json* value = FindColumn(row, column);
  return value == nullptr ? std::string() : Text(*value, column);
}

bool IsBlank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

const std::string& Said(const Json& value, const std::string& column) {
  const std::string& text = Text(value, column);
  if (IsBlank(text)) Throw(Quoted(column, 40), "is empty, so it has nothing to learn");
  return text;
}

}  // namespace tandem::training::row_fields
