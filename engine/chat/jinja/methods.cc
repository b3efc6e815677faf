// The methods of dicts and lists, and the search for a method.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/jinja/access.h"
#include "engine/chat/jinja/text_methods.h"

namespace tandem::engine {
namespace {

Value Pairs(Runtime& rt, const Value& self, const Arguments& arguments) {
  Bind(rt, arguments, "items", {});
  std::vector<Value> pairs;
  for (const auto& [key, value] : self.dict().entries) {
    rt.Step();
    pairs.push_back(MakeList(rt, {key, value}, ListKind::kTuple, self.dict().from_client));
  }
  return MakeList(rt, std::move(pairs), ListKind::kList, self.dict().from_client);
}

Value Keys(Runtime& rt, const Value& self, const Arguments& arguments) {
  Bind(rt, arguments, "keys", {});
  return MakeList(rt, Elements(rt, self), ListKind::kList, self.dict().from_client);
}

Value Values(Runtime& rt, const Value& self, const Arguments& arguments) {
  Bind(rt, arguments, "values", {});
  std::vector<Value> values;
  for (const auto& [key, value] : self.dict().entries) values.push_back(value);
  return MakeList(rt, std::move(values), ListKind::kList, self.dict().from_client);
}

Value Get(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "get", {"key", "default"}, 1);
  if (const Value* found = FindKey(rt, self.dict(), *bound[0])) return *found;
  return bound[1] == nullptr ? Value() : *bound[1];
}

// Dicts and lists never change, so a copy is the same object.
Value Copy(Runtime& rt, const Value& self, const Arguments& arguments) {
  Bind(rt, arguments, "copy", {});
  return self;
}

Value CountItem(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "count", {"value"}, 1);
  int64_t count = 0;
  for (const Value& item : self.list().items) count += Equal(rt, item, *bound[0]) ? 1 : 0;
  return Value::Int(count);
}

Value IndexOfItem(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "index", {"value"}, 1);
  const std::vector<Value>& items = self.list().items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (Equal(rt, items[i], *bound[0])) return Value::Int(static_cast<int64_t>(i));
  }
  rt.Fail("index(): the value is not in the list");
}

const MethodTable& DictMethods() {
  static const MethodTable table = {
      {"copy", Copy}, {"get", Get}, {"items", Pairs}, {"keys", Keys}, {"values", Values}};
  return table;
}

const MethodTable& ListMethods() {
  static const MethodTable table = {{"copy", Copy}, {"count", CountItem}, {"index", IndexOfItem}};
  return table;
}

}  // namespace

std::optional<Value> FindMethod(Runtime& rt, const Value& object, std::string_view name) {
  const MethodTable& table = object.is(Value::Type::kText)   ? TextMethods()
                             : object.is(Value::Type::kDict) ? DictMethods()
                                                             : ListMethods();
  const auto it = table.find(name);
  if (it == table.end()) return std::nullopt;
  return MakeCallable(rt, std::string(name), object,
                      [object, method = it->second](Runtime& runtime, const Arguments& arguments) {
                        return method(runtime, object, arguments);
                      });
}

}  // namespace tandem::engine
