// Filters of lists, dicts and other sequences.

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/jinja/access.h"
#include "engine/chat/jinja/filter_tables.h"
#include "engine/chat/jinja/operators.h"
#include "engine/chat/jinja/print.h"
#include "engine/chat/jinja/tests.h"

namespace tandem::engine {
namespace {

// The key that sorting and comparing filters use: the named attribute, if any, in lower case unless
// case_sensitive.
Value SortKey(Runtime& rt, const Value& item, const Value* attribute, bool case_sensitive) {
  Value key = attribute == nullptr || attribute->is_none() ? item : GetPath(rt, item, *attribute);
  if (!case_sensitive && IsText(key)) return Value::Of(Lower(rt, *key.text()));
  return key;
}

Value LengthFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  Bind(rt, arguments, "length", {});
  switch (input.type()) {
    case Value::Type::kUndefined:
      return Value::Int(0);
    case Value::Type::kText:
      rt.Work(input.text()->size());
      return Value::Int(static_cast<int64_t>(CountCodePoints(input.text()->bytes())));
    case Value::Type::kList:
      return Value::Int(static_cast<int64_t>(input.list().items.size()));
    case Value::Type::kDict:
      return Value::Int(static_cast<int64_t>(input.dict().entries.size()));
    default:
      rt.Fail("an object of type '" + TypeName(input) + "' has no length");
  }
}

Value FirstFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  Bind(rt, arguments, "first", {});
  std::vector<Value> items = Elements(rt, input);
  if (items.empty()) return Value::MakeUndefined("no first item, the sequence was empty");
  return items.front();
}

Value LastFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  Bind(rt, arguments, "last", {});
  std::vector<Value> items = Elements(rt, input);
  if (items.empty()) return Value::MakeUndefined("no last item, the sequence was empty");
  return items.back();
}

Value ListFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  Bind(rt, arguments, "list", {});
  const bool client = input.is(Value::Type::kList) && input.list().from_client;
  return MakeList(rt, Elements(rt, input), ListKind::kList, client);
}

Value JoinFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "join", {"d", "attribute"});
  const TextPtr glue = bound[0] == nullptr ? Text::Make("", false) : ToText(rt, *bound[0]);
  const bool by_attribute = bound[1] != nullptr && !bound[1]->is_none();
  TextBuilder out(rt);
  bool first = true;
  for (const Value& item : Elements(rt, input)) {
    rt.Step();
    if (!first) out.Append(*glue);
    first = false;
    AppendText(out, by_attribute ? GetPath(rt, item, *bound[1]) : item);
  }
  return Value::Of(out.Take());
}

Value ReverseFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  Bind(rt, arguments, "reverse", {});
  if (IsText(input)) return GetSlice(rt, input, Value(), Value(), Value::Int(-1));
  std::vector<Value> items = Elements(rt, input);
  std::reverse(items.begin(), items.end());
  return MakeList(rt, std::move(items), ListKind::kGenerator);
}

// Sorts items by precomputed keys; equal keys keep their order, also in reverse.
std::vector<Value> SortBy(Runtime& rt, const std::vector<Value>& items,
                          const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? Less(rt, keys[b], keys[a]) : Less(rt, keys[a], keys[b]);
  });
  std::vector<Value> sorted;
  sorted.reserve(items.size());
  for (const size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

// attribute="a,b" sorts by a, then b.
Value SortKeys(Runtime& rt, const Value& item, const Value* attribute, bool case_sensitive) {
  if (attribute == nullptr || !IsText(*attribute)) {
    return SortKey(rt, item, attribute, case_sensitive);
  }
  std::vector<Value> keys;
  const std::string_view names = attribute->text()->bytes();
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const Value name = Value::Literal(std::string(names.substr(begin, end - begin)));
    keys.push_back(SortKey(rt, item, &name, case_sensitive));
    begin = end + 1;
  }
  return MakeList(rt, std::move(keys));
}

Value SortFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "sort", {"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = Elements(rt, input);
  std::vector<Value> keys;
  for (const Value& item : items) {
    rt.Step();
    keys.push_back(SortKeys(rt, item, bound[2], FilterFlag(bound[1])));
  }
  return MakeList(rt, SortBy(rt, items, keys, FilterFlag(bound[0])));
}

Value DictSort(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "dictsort", {"case_sensitive", "by", "reverse"});
  RequireDefined(rt, input);
  if (!input.is(Value::Type::kDict))
    rt.Fail("dictsort needs a dict, got '" + TypeName(input) + "'");
  const std::string_view by =
      bound[1] == nullptr ? "key" : RequireText(rt, *bound[1], "dictsort's by").bytes();
  if (by != "key" && by != "value") rt.Fail("dictsort: by must be 'key' or 'value'");
  std::vector<Value> pairs;
  std::vector<Value> keys;
  for (const auto& [key, value] : input.dict().entries) {
    rt.Step();
    pairs.push_back(MakeList(rt, {key, value}, ListKind::kTuple, input.dict().from_client));
    keys.push_back(SortKey(rt, by == "key" ? key : value, nullptr, FilterFlag(bound[0])));
  }
  return MakeList(rt, SortBy(rt, pairs, keys, FilterFlag(bound[2])));
}

Value UniqueFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "unique", {"case_sensitive", "attribute"});
  std::set<std::string> seen;
  std::vector<Value> unique;
  for (const Value& item : Elements(rt, input)) {
    const Value key = SortKey(rt, item, bound[1], FilterFlag(bound[0]));
    if (seen.insert(CanonicalKey(rt, key)).second) unique.push_back(item);
  }
  return MakeList(rt, std::move(unique), ListKind::kGenerator);
}

template <bool maximum>
Value Extreme(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, maximum ? "max" : "min", {"case_sensitive", "attribute"});
  const std::vector<Value> items = Elements(rt, input);
  if (items.empty()) return Value::MakeUndefined("no aggregated item, the sequence was empty");
  size_t best = 0;
  Value best_key = SortKey(rt, items[0], bound[1], FilterFlag(bound[0]));
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = SortKey(rt, items[i], bound[1], FilterFlag(bound[0]));
    if (maximum ? Less(rt, best_key, key) : Less(rt, key, best_key)) {
      best = i;
      best_key = std::move(key);
    }
  }
  return items[best];
}

Value SumFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "sum", {"attribute", "start"});
  const bool by_attribute = bound[0] != nullptr && !bound[0]->is_none();
  Value total = bound[1] == nullptr ? Value::Int(0) : *bound[1];
  for (const Value& item : Elements(rt, input)) {
    rt.Step();
    const Value term = by_attribute ? GetPath(rt, item, *bound[0]) : item;
    if (!total.is_number() || !term.is_number()) rt.Fail("sum adds numbers only");
    total = Calculate(rt, BinaryOp::kAdd, total, term);
  }
  return total;
}

Value BatchFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "batch", {"linecount", "fill_with"}, 1);
  const int64_t size = RequireInt(rt, *bound[0], "batch's linecount");
  if (size < 1 || size > kMaxRange) rt.Fail("batch: the size must be in [1, 100000]");
  std::vector<Value> batches;
  std::vector<Value> batch;
  for (const Value& item : Elements(rt, input)) {
    rt.Step();
    if (static_cast<int64_t>(batch.size()) == size) {
      batches.push_back(MakeList(rt, std::move(batch)));
      batch.clear();
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (bound[1] != nullptr && !bound[1]->is_none()) {
      batch.resize(static_cast<size_t>(size), *bound[1]);
    }
    batches.push_back(MakeList(rt, std::move(batch)));
  }
  return MakeList(rt, std::move(batches), ListKind::kGenerator);
}

Value ItemsFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  Bind(rt, arguments, "items", {});
  std::vector<Value> pairs;
  if (!input.is_undefined()) {
    if (!input.is(Value::Type::kDict)) rt.Fail("items needs a dict, got '" + TypeName(input) + "'");
    for (const auto& [key, value] : input.dict().entries) {
      rt.Step();
      pairs.push_back(MakeList(rt, {key, value}, ListKind::kTuple, input.dict().from_client));
    }
  }
  return MakeList(rt, std::move(pairs), ListKind::kGenerator);
}

// Removes the first `count` positional arguments.
Arguments Without(const Arguments& arguments, size_t count) {
  Arguments rest;
  rest.named = arguments.named;
  for (size_t i = count; i < arguments.positional.size(); ++i) {
    rest.positional.push_back(arguments.positional[i]);
  }
  return rest;
}

// map and select return nothing for a false value, such as none in a chat without tools.
std::vector<Value> ElementsIfTrue(Runtime& rt, const Value& value) {
  return IsTrue(value) ? Elements(rt, value) : std::vector<Value>();
}

Value MapFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  std::vector<Value> mapped;
  if (arguments.positional.empty()) {
    const auto bound = Bind(rt, arguments, "map", {"attribute", "default"}, 1);
    for (const Value& item : ElementsIfTrue(rt, input)) {
      rt.Step();
      Value value = GetPath(rt, item, *bound[0]);
      if (value.is_undefined() && bound[1] != nullptr) value = *bound[1];
      mapped.push_back(std::move(value));
    }
  } else {
    const Text& name = RequireText(rt, arguments.positional[0], "map's filter");
    const FilterFunction filter = FindFilter(name.bytes());
    if (filter == nullptr) FailUnknownFilter(rt, name.bytes());
    const Arguments rest = Without(arguments, 1);
    const Runtime::DepthGuard depth(rt);
    for (const Value& item : ElementsIfTrue(rt, input)) {
      rt.Step();
      mapped.push_back(filter(rt, item, rest));
    }
  }
  return MakeList(rt, std::move(mapped), ListKind::kGenerator);
}

// select, reject, selectattr, rejectattr: keeps the items that pass the test (or truth), or the
// others.
template <bool by_attribute, bool keep>
Value SelectFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const size_t first = by_attribute ? 1 : 0;
  if (arguments.positional.size() < first) rt.Fail("the filter needs an attribute");
  TestFunction test = nullptr;
  Arguments rest;
  if (arguments.positional.size() > first) {
    const Text& name = RequireText(rt, arguments.positional[first], "the test");
    test = FindTest(name.bytes());
    if (test == nullptr) FailUnknownTest(rt, name.bytes());
    rest = Without(arguments, first + 1);
  }
  const Runtime::DepthGuard depth(rt);
  std::vector<Value> kept;
  for (const Value& item : ElementsIfTrue(rt, input)) {
    rt.Step();
    const Value subject = by_attribute ? GetPath(rt, item, arguments.positional[0]) : item;
    const bool holds = test == nullptr ? IsTrue(subject) : test(rt, subject, rest);
    if (holds == keep) kept.push_back(item);
  }
  return MakeList(rt, std::move(kept), ListKind::kGenerator);
}

}  // namespace

const FilterTable& SequenceFilters() {
  static const FilterTable table = {
      {"batch", BatchFilter},
      {"count", LengthFilter},
      {"dictsort", DictSort},
      {"first", FirstFilter},
      {"items", ItemsFilter},
      {"join", JoinFilter},
      {"last", LastFilter},
      {"length", LengthFilter},
      {"list", ListFilter},
      {"map", MapFilter},
      {"max", Extreme<true>},
      {"min", Extreme<false>},
      {"reject", SelectFilter<false, false>},
      {"rejectattr", SelectFilter<true, false>},
      {"reverse", ReverseFilter},
      {"select", SelectFilter<false, true>},
      {"selectattr", SelectFilter<true, true>},
      {"sort", SortFilter},
      {"sum", SumFilter},
      {"unique", UniqueFilter},
  };
  return table;
}

}  // namespace tandem::engine
