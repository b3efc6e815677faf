#include "engine/chat/jinja/filters.h"

#include <optional>
#include <string>
#include <string_view>

#include "engine/chat/jinja/access.h"
#include "engine/chat/jinja/filter_tables.h"

namespace tandem::engine {
namespace {

Value DefaultFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "default", {"default_value", "boolean"});
  const bool replace = input.is_undefined() || (FilterFlag(bound[1]) && !IsTrue(input));
  if (!replace) return input;
  return bound[0] == nullptr ? Value::Literal("") : *bound[0];
}

Value AttrFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "attr", {"name"}, 1);
  const Text& name = RequireText(rt, *bound[0], "attr's name");
  // Python's getattr: the keys of a dict are not attributes.
  if (input.is(Value::Type::kDict)) {
    if (std::optional<Value> method = FindMethod(rt, input, name.bytes())) return *method;
    return Value::MakeUndefined("'dict object' has no attribute '" + std::string(name.bytes()) +
                                "'");
  }
  return GetAttribute(rt, input, name.bytes());
}

const FilterTable& GeneralFilters() {
  static const FilterTable table = {
      {"attr", AttrFilter},
      {"d", DefaultFilter},
      {"default", DefaultFilter},
  };
  return table;
}

}  // namespace

FilterFunction FindFilter(std::string_view name) {
  for (const FilterTable* table :
       {&TextFilters(), &NumberFilters(), &SequenceFilters(), &GeneralFilters()}) {
    if (const auto found = table->find(name); found != table->end()) return found->second;
  }
  return nullptr;
}

void FailUnknownFilter(const Runtime& rt, std::string_view name) {
  rt.FailUnsupported("unknown filter '" + std::string(name) + "'");
}

}  // namespace tandem::engine
