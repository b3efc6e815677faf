#include "engine/chat/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace tandem::engine {
namespace {

constexpr size_t kEntryOverheadBytes = 96;  // per dict entry: the pair and its index node

int CheckedDepth(Runtime& rt, int depth) {
  if (depth > kMaxValueDepth) {
    rt.Fail("values nest deeper than " + std::to_string(kMaxValueDepth) + " levels");
  }
  return depth;
}

// Compares an integer with a float without losing precision.
int CompareIntFloat(int64_t a, double b) {
  if (b >= 9223372036854775808.0) return -1;
  if (b < -9223372036854775808.0) return 1;
  const auto whole = static_cast<int64_t>(b);
  if (a != whole) return a < whole ? -1 : 1;
  const double rest = b - static_cast<double>(whole);
  return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

// Compares two integers outside 64 bits, which JSON writes without leading zeros.
int CompareDigits(std::string_view a, std::string_view b) {
  const bool is_negative = a.starts_with('-');
  if (is_negative != b.starts_with('-')) return is_negative ? -1 : 1;
  const int order = a.size() != b.size() ? (a.size() < b.size() ? -1 : 1) : a.compare(b);
  return is_negative ? -order : order;
}

// Negative, zero or positive; nullopt if either is NaN.
std::optional<int> CompareNumbers(const Value& a, const Value& b) {
  const bool wide_a = a.is(Value::Type::kWideInt);
  const bool wide_b = b.is(Value::Type::kWideInt);
  if (wide_a && wide_b) return CompareDigits(a.digits(), b.digits());
  // A wide integer lies beyond every integer of 64 bits.
  if (wide_a && b.is_integral()) return a.digits().starts_with('-') ? -1 : 1;
  if (wide_b && a.is_integral()) return b.digits().starts_with('-') ? 1 : -1;
  const bool float_a = a.is(Value::Type::kFloat);
  const bool float_b = b.is(Value::Type::kFloat);
  if ((float_a && std::isnan(a.as_float())) || (float_b && std::isnan(b.as_float()))) {
    return std::nullopt;
  }
  if (!float_a && !float_b) {
    return a.integral() < b.integral() ? -1 : a.integral() > b.integral() ? 1 : 0;
  }
  if ((float_a && float_b) || wide_a || wide_b) {
    return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
  }
  if (float_b) return CompareIntFloat(a.integral(), b.as_float());
  return -CompareIntFloat(b.integral(), a.as_float());
}

bool EqualDicts(Runtime& rt, const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [canonical, at] : a.index) {
    rt.Step();
    const auto other = b.index.find(canonical);
    if (other == b.index.end()) return false;
    if (!Equal(rt, a.entries[at].second, b.entries[other->second].second)) return false;
  }
  return true;
}

}  // namespace

Value Value::MakeUndefined(std::string why) {
  return Value(Data(Undefined{std::make_shared<const std::string>(std::move(why))}));
}

int64_t Value::integral() const {
  return is(Type::kBool) ? static_cast<int64_t>(as_bool()) : std::get<int64_t>(data_);
}

Value Value::WideInt(std::string digits) {
  return Value(Data(WideInteger{std::make_shared<const std::string>(std::move(digits))}));
}

double Value::number() const {
  if (is(Type::kWideInt)) return std::strtod(digits().c_str(), nullptr);
  return is(Type::kFloat) ? as_float() : static_cast<double>(integral());
}

bool Value::SameObject(const Value& other) const {
  if (type() != other.type()) return false;
  switch (type()) {
    case Type::kUndefined:
    case Type::kNone:
      return true;
    case Type::kBool:
    case Type::kInt:
      return integral() == other.integral();
    case Type::kFloat:
      return as_float() == other.as_float();
    case Type::kWideInt:
      return digits() == other.digits();
    case Type::kText:
      return text()->bytes() == other.text()->bytes();
    case Type::kList:
      return &list() == &other.list();
    case Type::kDict:
      return &dict() == &other.dict();
    case Type::kNamespace:
      return name_space() == other.name_space();
    case Type::kLoop:
      return loop() == other.loop();
    case Type::kCallable:
      return &callable() == &other.callable();
  }
  return false;
}

const Value* Dict::Find(std::string_view text_key) const {
  std::string canonical = "s";
  canonical.append(text_key);
  const auto it = index.find(canonical);
  return it == index.end() ? nullptr : &entries[it->second].second;
}

Value Arguments::NameAsValue(const std::string& name) const {
  return Value::Of(Text::Make(name, client_names.contains(name)));
}

std::vector<const Value*> Bind(Runtime& rt, const Arguments& arguments, std::string_view callee,
                               std::initializer_list<const char*> names, size_t required) {
  const std::string function(callee);
  if (arguments.positional.size() > names.size()) {
    rt.Fail(function + "() takes at most " + std::to_string(names.size()) + " arguments, got " +
            std::to_string(arguments.positional.size()));
  }
  const auto argument = [&](const char* verb, const std::string& name) {
    return function + "() " + verb + " argument '" + name + "'";
  };
  std::vector<const Value*> bound(names.size(), nullptr);
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto it = std::find_if(names.begin(), names.end(),
                                 [&n = name](const char* known) { return n == known; });
    if (it == names.end()) rt.Fail(argument("has no", name));
    const Value*& target = bound[static_cast<size_t>(it - names.begin())];
    if (target != nullptr) rt.Fail(argument("got", name) + " twice");
    target = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound[i] == nullptr) {
      rt.Fail(argument("misses its", *(names.begin() + i)));
    }
  }
  return bound;
}

int DepthOf(const Value& value) {
  switch (value.type()) {
    case Value::Type::kList:
      return value.list().depth;
    case Value::Type::kDict:
      return value.dict().depth;
    case Value::Type::kLoop:
      return value.loop()->items->depth + 1;
    case Value::Type::kCallable:
      return value.callable().depth;
    default:
      return 0;
  }
}

Value MakeList(Runtime& rt, std::vector<Value> items, ListKind kind, bool from_client) {
  rt.Work(sizeof(List) + items.size() * sizeof(Value));
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, DepthOf(item));
  auto list = std::make_shared<List>();
  list->items = std::move(items);
  list->kind = kind;
  list->from_client = from_client;
  list->depth = CheckedDepth(rt, depth + 1);
  return Value::Of(std::shared_ptr<const List>(std::move(list)));
}

Value MakeCallable(Runtime& rt, std::string name, const Value& captured,
                   std::function<Value(Runtime&, const Arguments&)> call) {
  rt.Work(sizeof(Callable));
  auto callable = std::make_shared<Callable>();
  callable->name = std::move(name);
  callable->depth = CheckedDepth(rt, DepthOf(captured) + 1);
  callable->call = std::move(call);
  return Value::Of(std::shared_ptr<const Callable>(std::move(callable)));
}

void DictBuilder::Set(const Value& key, Value value) {
  std::string canonical = CanonicalKey(rt_, key);
  rt_.Work(kEntryOverheadBytes + canonical.size());
  const auto [it, inserted] = dict_.index.emplace(std::move(canonical), dict_.entries.size());
  dict_.depth = CheckedDepth(rt_, std::max({dict_.depth, DepthOf(key) + 1, DepthOf(value) + 1}));
  if (inserted) {
    dict_.entries.emplace_back(key, std::move(value));
  } else {
    dict_.entries[it->second].second = std::move(value);
  }
}

Value DictBuilder::Take(bool from_client) {
  dict_.from_client = from_client;
  return Value::Of(std::shared_ptr<const Dict>(std::make_shared<Dict>(std::move(dict_))));
}

std::string TypeName(const Value& value) {
  switch (value.type()) {
    case Value::Type::kUndefined:
      return "Undefined";
    case Value::Type::kNone:
      return "NoneType";
    case Value::Type::kBool:
      return "bool";
    case Value::Type::kInt:
    case Value::Type::kWideInt:
      return "int";
    case Value::Type::kFloat:
      return "float";
    case Value::Type::kText:
      return "str";
    case Value::Type::kList:
      switch (value.list().kind) {
        case ListKind::kTuple:
          return "tuple";
        case ListKind::kGenerator:
          return "generator";
        case ListKind::kList:
          break;
      }
      return "list";
    case Value::Type::kDict:
      return "dict";
    case Value::Type::kNamespace:
      return "Namespace";
    case Value::Type::kLoop:
      return "LoopContext";
    case Value::Type::kCallable:
      return "function";
  }
  return "object";
}

bool IsTrue(const Value& value) {
  switch (value.type()) {
    case Value::Type::kUndefined:
    case Value::Type::kNone:
      return false;
    case Value::Type::kBool:
    case Value::Type::kInt:
    case Value::Type::kFloat:
    case Value::Type::kWideInt:
      return value.number() != 0;
    case Value::Type::kText:
      return !value.text()->empty();
    case Value::Type::kList:
      return value.list().kind == ListKind::kGenerator || !value.list().items.empty();
    case Value::Type::kDict:
      return !value.dict().entries.empty();
    case Value::Type::kNamespace:
    case Value::Type::kLoop:
    case Value::Type::kCallable:
      return true;
  }
  return true;
}

bool Equal(Runtime& rt, const Value& a, const Value& b) {
  rt.Step();
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b) == 0;
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Value::Type::kText:
      if (a.text()->size() != b.text()->size()) return false;
      rt.Work(a.text()->size());
      return a.text()->bytes() == b.text()->bytes();
    case Value::Type::kList: {
      const List& x = a.list();
      const List& y = b.list();
      if (&x == &y) return true;
      if (x.kind != y.kind || x.kind == ListKind::kGenerator) return false;
      return std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(),
                        [&rt](const Value& p, const Value& q) { return Equal(rt, p, q); });
    }
    case Value::Type::kDict:
      return &a.dict() == &b.dict() || EqualDicts(rt, a.dict(), b.dict());
    default:
      return a.SameObject(b);
  }
}

bool Less(Runtime& rt, const Value& a, const Value& b) {
  rt.Step();
  if (a.is_number() && b.is_number()) {
    const std::optional<int> order = CompareNumbers(a, b);
    return order.has_value() && *order < 0;
  }
  if (a.is(Value::Type::kText) && b.is(Value::Type::kText)) {
    rt.Work(std::min(a.text()->size(), b.text()->size()));
    // The order of UTF-8 bytes is the order of code points.
    return a.text()->bytes() < b.text()->bytes();
  }
  if (a.is(Value::Type::kList) && b.is(Value::Type::kList) && a.list().kind == b.list().kind &&
      a.list().kind != ListKind::kGenerator) {
    const std::vector<Value>& x = a.list().items;
    const std::vector<Value>& y = b.list().items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!Equal(rt, x[i], y[i])) return Less(rt, x[i], y[i]);
    }
    return x.size() < y.size();
  }
  RequireDefined(rt, a);
  RequireDefined(rt, b);
  rt.Fail("'<' is not supported between '" + TypeName(a) + "' and '" + TypeName(b) + "'");
}

bool Contains(Runtime& rt, const Value& container, const Value& item) {
  rt.Step();
  switch (container.type()) {
    case Value::Type::kUndefined:
      return false;
    case Value::Type::kText: {
      const Text& needle = RequireText(rt, item, "the left operand of 'in' on a string");
      rt.Work(container.text()->size());
      return FindBytes(container.text()->bytes(), needle.bytes(), 0) != std::string_view::npos;
    }
    case Value::Type::kList: {
      const std::vector<Value>& items = container.list().items;
      return std::any_of(items.begin(), items.end(),
                         [&](const Value& element) { return Equal(rt, element, item); });
    }
    case Value::Type::kDict:
      return FindKey(rt, container.dict(), item) != nullptr;
    default:
      rt.Fail("'" + TypeName(container) + "' object is not iterable");
  }
}

std::string CanonicalKey(Runtime& rt, const Value& value) {
  rt.Step();
  switch (value.type()) {
    case Value::Type::kUndefined:
      return "u";
    case Value::Type::kNone:
      return "n";
    case Value::Type::kBool:
    case Value::Type::kInt:
      return "i" + std::to_string(value.integral());
    case Value::Type::kWideInt:
      rt.Work(value.digits().size());
      return "i" + value.digits();
    case Value::Type::kFloat: {
      const double number = value.as_float();
      if (number >= -9223372036854775808.0 && number < 9223372036854775808.0 &&
          std::trunc(number) == number) {
        return "i" + std::to_string(static_cast<int64_t>(number));
      }
      std::string key(1 + sizeof(number), 'f');
      std::memcpy(key.data() + 1, &number, sizeof(number));
      return key;
    }
    case Value::Type::kText: {
      rt.Work(value.text()->size());
      std::string key = "s";
      key.append(value.text()->bytes());
      return key;
    }
    case Value::Type::kList: {
      if (value.list().kind != ListKind::kTuple) break;
      std::string key = "t";
      for (const Value& item : value.list().items) {
        const std::string part = CanonicalKey(rt, item);
        rt.Work(part.size());
        key += std::to_string(part.size()) + ":" + part;
      }
      return key;
    }
    default:
      break;
  }
  rt.Fail("unhashable type: '" + TypeName(value) + "'");
}

const Value* FindKey(Runtime& rt, const Dict& dict, const Value& key) {
  if (key.is(Value::Type::kText)) {
    rt.Work(key.text()->size());
    return dict.Find(key.text()->bytes());
  }
  const auto it = dict.index.find(CanonicalKey(rt, key));
  return it == dict.index.end() ? nullptr : &dict.entries[it->second].second;
}

std::vector<Value> Elements(Runtime& rt, const Value& value) {
  std::vector<Value> elements;
  switch (value.type()) {
    case Value::Type::kUndefined:
      break;
    case Value::Type::kText: {
      const TextPtr& text = value.text();
      for (size_t i = 0; i < text->size();) {
        rt.Step();
        const size_t next = i + ReadCodePoint(text->bytes(), i).bytes;
        elements.push_back(Value::Of(Substring(rt, text, i, next)));
        i = next;
      }
      break;
    }
    case Value::Type::kList:
      rt.Work(value.list().items.size() * sizeof(Value));
      elements = value.list().items;
      break;
    case Value::Type::kDict:
      rt.Work(value.dict().entries.size() * sizeof(Value));
      for (const auto& [key, entry] : value.dict().entries) elements.push_back(key);
      break;
    default:
      rt.Fail("'" + TypeName(value) + "' object is not iterable");
  }
  return elements;
}

void RequireDefined(Runtime& rt, const Value& value) {
  if (value.is_undefined()) rt.Fail(value.why_undefined());
}

int64_t RequireInt(Runtime& rt, const Value& value, std::string_view what) {
  if (!value.is_integral()) {
    rt.Fail(std::string(what) + " must be an integer, got '" + TypeName(value) + "'");
  }
  return value.integral();
}

const Text& RequireText(Runtime& rt, const Value& value, std::string_view what) {
  if (!value.is(Value::Type::kText)) {
    rt.Fail(std::string(what) + " must be a string, got '" + TypeName(value) + "'");
  }
  return *value.text();
}

}  // namespace tandem::engine
