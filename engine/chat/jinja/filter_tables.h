#pragma once

#include <map>
#include <string_view>

#include "engine/chat/jinja/filters.h"
#include "engine/chat/jinja/value.h"

// The filters by subject. Internal to FindFilter.
namespace tandem::engine {

using FilterTable = std::map<std::string_view, FilterFunction>;

const FilterTable& TextFilters();
const FilterTable& NumberFilters();
const FilterTable& SequenceFilters();

inline bool IsText(const Value& value) { return value.is(Value::Type::kText); }
// Whether an optional argument of a filter is set.
inline bool FilterFlag(const Value* value, bool fallback = false) {
  return value == nullptr ? fallback : IsTrue(*value);
}

}  // namespace tandem::engine
