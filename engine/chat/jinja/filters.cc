#include "engine/chat/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "engine/chat/jinja/access.h"
#include "engine/chat/jinja/operators.h"
#include "engine/chat/jinja/print.h"
#include "engine/chat/jinja/tests.h"

namespace tandem::engine {
namespace {

bool Flag(const Value* value, bool fallback = false) {
  return value == nullptr ? fallback : IsTrue(*value);
}

bool IsText(const Value& value) { return value.is(Value::Type::kText); }

// The key that sorting and comparing filters use: the named attribute, if any, in lower case unless
// case_sensitive.
Value SortKey(Runtime& rt, const Value& item, const Value* attribute, bool case_sensitive) {
  Value key = attribute == nullptr || attribute->is_none() ? item : GetPath(rt, item, *attribute);
  if (!case_sensitive && IsText(key)) return Value::Of(Lower(rt, *key.text()));
  return key;
}

// ---- text

Value TrimFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "trim", {"chars"});
  const bool has_chars = bound[0] != nullptr && !bound[0]->is_none();
  const Text* chars = has_chars ? &RequireText(rt, *bound[0], "trim's argument") : nullptr;
  return Value::Of(Strip(rt, ToText(rt, input), chars, Side::kBoth));
}

template <TextPtr (*transform)(Runtime&, const Text&)>
Value TransformFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  Bind(rt, arguments, "the filter", {});
  return Value::Of(transform(rt, *ToText(rt, input)));
}

// Words begin after spaces, dashes and opening brackets (Jinja's rule, not str.title's).
TextPtr TitleWords(Runtime& rt, const Text& text) {
  TextBuilder out(rt);
  bool word_begins = true;
  text.ForEachRun(0, text.size(), [&](std::string_view part, bool from_client) {
    std::string mapped;
    for (size_t i = 0; i < part.size();) {
      const CodePoint c = ReadCodePoint(part, i);
      if (!c.valid) {
        mapped.push_back(part[i]);
        word_begins = false;
      } else {
        word_begins ? AppendUpper(mapped, c.value) : AppendLower(mapped, c.value);
        word_begins = IsSpace(c.value) ||
                      (c.value < 0x80 && std::string_view("-({[<").find(
                                             static_cast<char>(c.value)) != std::string_view::npos);
      }
      i += c.bytes;
    }
    out.Append(mapped, from_client);
  });
  return out.Take();
}

TextPtr EscapeHtml(Runtime& rt, const Text& text) {
  TextBuilder out(rt);
  text.ForEachRun(0, text.size(), [&](std::string_view part, bool from_client) {
    std::string escaped;
    for (const char c : part) {
      switch (c) {
        case '&':
          escaped += "&amp;";
          break;
        case '<':
          escaped += "&lt;";
          break;
        case '>':
          escaped += "&gt;";
          break;
        case '\'':
          escaped += "&#39;";
          break;
        case '"':
          escaped += "&#34;";
          break;
        default:
          escaped += c;
      }
    }
    out.Append(escaped, from_client);
  });
  return out.Take();
}

Value ReplaceFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "replace", {"old", "new", "count"}, 2);
  const bool all = bound[2] == nullptr || bound[2]->is_none();
  return Value::Of(Replace(rt, ToText(rt, input), *ToText(rt, *bound[0]), *ToText(rt, *bound[1]),
                           all ? -1 : RequireInt(rt, *bound[2], "replace's count")));
}

Value IndentFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "indent", {"width", "first", "blank"});
  const TextPtr text = ToText(rt, input);
  TextBuilder unit(rt);
  if (bound[0] != nullptr && IsText(*bound[0])) {
    unit.Append(*bound[0]->text());
  } else {
    const int64_t width = bound[0] == nullptr ? 4 : RequireInt(rt, *bound[0], "indent's width");
    if (width > 0) unit.AppendRepeated(' ', static_cast<size_t>(width), false);
  }
  const TextPtr indent = unit.Take();
  const bool blank = Flag(bound[2]);

  TextBuilder out(rt);
  if (Flag(bound[1])) out.Append(*indent);
  std::vector<Line> lines = SplitLines(rt, *text);
  // A final line break begins one more, empty line.
  if (!lines.empty() && lines.back().next > lines.back().end) {
    lines.push_back({text->size(), text->size(), text->size()});
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    rt.Step();
    if (i > 0) {
      out.Append("\n", text->ClientAt(lines[i - 1].end));
      if (blank || lines[i].end > lines[i].begin) out.Append(*indent);
    }
    out.Append(*text, lines[i].begin, lines[i].end);
  }
  return Value::Of(out.Take());
}

Value StringFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  Bind(rt, arguments, "string", {});
  return Value::Of(ToText(rt, input));
}

Value SafeFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  return StringFilter(rt, input, arguments);
}

Value FormatFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  return FormatPercent(rt, *ToText(rt, input), arguments);
}

Value WordCount(Runtime& rt, const Value& input, const Arguments& arguments) {
  Bind(rt, arguments, "wordcount", {});
  const TextPtr text = ToText(rt, input);
  rt.Work(text->size());
  int64_t words = 0;
  bool in_word = false;
  for (size_t i = 0; i < text->size();) {
    const CodePoint c = ReadCodePoint(text->bytes(), i);
    const bool letter = c.valid && (IsAlnum(c.value) || c.value == '_');
    words += letter && !in_word ? 1 : 0;
    in_word = letter;
    i += c.bytes;
  }
  return Value::Int(words);
}

// The indent argument of json.dumps: a number of spaces or the white space itself.
std::optional<std::string> JsonIndent(Runtime& rt, const Value* indent) {
  if (indent == nullptr || indent->is_none()) return std::nullopt;
  if (IsText(*indent)) return std::string(indent->text()->bytes());
  const int64_t width = RequireInt(rt, *indent, "tojson's indent");
  if (width > 1000) rt.Fail("tojson: the indent exceeds 1000");
  return std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
}

Value ToJson(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound =
      Bind(rt, arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = Flag(bound[0]);
  style.indent = JsonIndent(rt, bound[1]);
  style.from_client = bound[1] != nullptr && IsText(*bound[1]) && bound[1]->text()->any_client();
  style.sort_keys = Flag(bound[3]);
  if (style.indent.has_value()) style.item_separator = ",";
  if (bound[2] != nullptr && !bound[2]->is_none()) {
    const std::vector<Value> separators = Elements(rt, *bound[2]);
    if (separators.size() != 2) rt.Fail("tojson: separators must be two strings");
    for (const Value& separator : separators) {
      const bool client = RequireText(rt, separator, "a separator").any_client();
      style.from_client = style.from_client || client;
    }
    style.item_separator = RequireText(rt, separators[0], "a separator").bytes();
    style.key_separator = RequireText(rt, separators[1], "a separator").bytes();
  }
  TextBuilder out(rt);
  AppendJson(out, input, style);
  return Value::Of(out.Take());
}

// ---- numbers

std::string Stripped(Runtime& rt, const Value& value) {
  std::string text(Strip(rt, value.text(), nullptr, Side::kBoth)->bytes());
  std::erase(text, '_');
  return text;
}

std::optional<double> ParseFloat(Runtime& rt, const Value& value) {
  if (value.is_number()) return value.number();
  if (!IsText(value)) return std::nullopt;
  std::string text = Stripped(rt, value);
  // from_chars accepts "inf" and "nan" as Python does, but no plus sign.
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') ++begin;
  double number = 0;
  const auto result = std::from_chars(begin, end, number);
  if (result.ptr != end || begin == end) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) return std::strtod(begin, nullptr);
  if (result.ec != std::errc()) return std::nullopt;
  return number;
}

std::optional<int64_t> FloatToInt(Runtime& rt, double number) {
  if (std::isnan(number) || std::isinf(number)) return std::nullopt;
  if (!(std::fabs(number) < 9.2e18)) rt.Fail("the integer does not fit into 64 bits");
  return static_cast<int64_t>(number);
}

std::optional<int64_t> ParseInt(Runtime& rt, const Value& value, int64_t base) {
  std::string text = Stripped(rt, value);
  const bool negative = !text.empty() && text[0] == '-';
  size_t at = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  const std::string_view prefixes[] = {"0x", "0o", "0b"};
  const int64_t bases[] = {16, 8, 2};
  for (size_t i = 0; i < 3; ++i) {
    if (text.size() < at + 2 || text[at] != '0' || (text[at + 1] | 0x20) != prefixes[i][1])
      continue;
    if (base == bases[i] || base == 0) {
      base = bases[i];
      at += 2;
      break;
    }
  }
  if (base == 0) base = 10;
  if (at >= text.size() || text[at] == '-') return std::nullopt;
  const std::string digits = (negative ? "-" : "") + text.substr(at);
  int64_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, number, static_cast<int>(base));
  if (result.ptr != end) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) rt.Fail("the integer does not fit into 64 bits");
  if (result.ec != std::errc()) return std::nullopt;
  return number;
}

Value IntFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "int", {"default", "base"});
  const int64_t base = bound[1] == nullptr ? 10 : RequireInt(rt, *bound[1], "int's base");
  if (base != 0 && (base < 2 || base > 36)) rt.Fail("int: the base must be 0 or 2..36");
  if (input.is_integral()) return Value::Int(input.integral());
  if (input.is(Value::Type::kWideInt)) return input;
  std::optional<int64_t> number;
  if (IsText(input)) number = ParseInt(rt, input, base);
  if (!number.has_value()) {
    // "42.23" | int is 42.
    const std::optional<double> as_float = ParseFloat(rt, input);
    if (as_float.has_value()) number = FloatToInt(rt, *as_float);
  }
  if (number.has_value()) return Value::Int(*number);
  return bound[0] == nullptr ? Value::Int(0) : *bound[0];
}

Value FloatFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "float", {"default"});
  if (const std::optional<double> number = ParseFloat(rt, input)) return Value::Float(*number);
  return bound[0] == nullptr ? Value::Float(0) : *bound[0];
}

Value AbsFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  Bind(rt, arguments, "abs", {});
  RequireDefined(rt, input);
  if (input.is(Value::Type::kFloat)) return Value::Float(std::fabs(input.as_float()));
  const int64_t number = RequireInt(rt, input, "abs");
  if (number == INT64_MIN) rt.Fail("the integer does not fit into 64 bits");
  return Value::Int(number < 0 ? -number : number);
}

// round() to `precision` decimal places: exact decimal value, halves to even, as in Python.
double RoundHalfEven(double number, int precision) {
  if (!std::isfinite(number)) return number;
  if (precision < 0) {
    const double scale = std::pow(10.0, -precision);
    return std::nearbyint(number / scale) * scale;
  }
  char buffer[400];
  std::snprintf(buffer, sizeof(buffer), "%.*f", precision, number);
  return std::strtod(buffer, nullptr);
}

Value RoundFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "round", {"precision", "method"});
  RequireDefined(rt, input);
  if (!input.is_number()) rt.Fail("round: '" + TypeName(input) + "' is not a number");
  const int64_t precision = bound[0] == nullptr ? 0 : RequireInt(rt, *bound[0], "the precision");
  if (precision < -20 || precision > 20) rt.Fail("round: the precision must be in [-20, 20]");
  const std::string_view method =
      bound[1] == nullptr ? "common" : RequireText(rt, *bound[1], "round's method").bytes();
  if (method == "common") {
    if (input.is_integral() && precision >= 0) return Value::Int(input.integral());
    if (input.is(Value::Type::kWideInt) && precision >= 0) return input;
    const double rounded = RoundHalfEven(input.number(), static_cast<int>(precision));
    if (!input.is_integral()) return Value::Float(rounded);
    return Value::Int(FloatToInt(rt, rounded).value_or(0));
  }
  if (method != "ceil" && method != "floor") {
    rt.Fail("round: the method must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = input.number() * scale;
  const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  return Value::Float((whole + 0.0) / scale);  // Python's is an integer here, which has no -0
}

// ---- sequences

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
    keys.push_back(SortKeys(rt, item, bound[2], Flag(bound[1])));
  }
  return MakeList(rt, SortBy(rt, items, keys, Flag(bound[0])));
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
    keys.push_back(SortKey(rt, by == "key" ? key : value, nullptr, Flag(bound[0])));
  }
  return MakeList(rt, SortBy(rt, pairs, keys, Flag(bound[2])));
}

Value UniqueFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "unique", {"case_sensitive", "attribute"});
  std::set<std::string> seen;
  std::vector<Value> unique;
  for (const Value& item : Elements(rt, input)) {
    const Value key = SortKey(rt, item, bound[1], Flag(bound[0]));
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
  Value best_key = SortKey(rt, items[0], bound[1], Flag(bound[0]));
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = SortKey(rt, items[i], bound[1], Flag(bound[0]));
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

Value DefaultFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "default", {"default_value", "boolean"});
  const bool replace = input.is_undefined() || (Flag(bound[1]) && !IsTrue(input));
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

FilterFunction FindFilter(std::string_view name) {
  static const std::map<std::string_view, FilterFunction> filters = {
      {"abs", AbsFilter},
      {"attr", AttrFilter},
      {"batch", BatchFilter},
      {"capitalize", TransformFilter<Capitalize>},
      {"count", LengthFilter},
      {"d", DefaultFilter},
      {"default", DefaultFilter},
      {"dictsort", DictSort},
      {"e", TransformFilter<EscapeHtml>},
      {"escape", TransformFilter<EscapeHtml>},
      {"first", FirstFilter},
      {"float", FloatFilter},
      {"forceescape", TransformFilter<EscapeHtml>},
      {"format", FormatFilter},
      {"indent", IndentFilter},
      {"int", IntFilter},
      {"items", ItemsFilter},
      {"join", JoinFilter},
      {"last", LastFilter},
      {"length", LengthFilter},
      {"list", ListFilter},
      {"lower", TransformFilter<Lower>},
      {"map", MapFilter},
      {"max", Extreme<true>},
      {"min", Extreme<false>},
      {"reject", SelectFilter<false, false>},
      {"rejectattr", SelectFilter<true, false>},
      {"replace", ReplaceFilter},
      {"reverse", ReverseFilter},
      {"round", RoundFilter},
      {"safe", SafeFilter},
      {"select", SelectFilter<false, true>},
      {"selectattr", SelectFilter<true, true>},
      {"sort", SortFilter},
      {"string", StringFilter},
      {"sum", SumFilter},
      {"title", TransformFilter<TitleWords>},
      {"tojson", ToJson},
      {"trim", TrimFilter},
      {"unique", UniqueFilter},
      {"upper", TransformFilter<Upper>},
      {"wordcount", WordCount},
  };
  const auto it = filters.find(name);
  return it == filters.end() ? nullptr : it->second;
}

void FailUnknownFilter(const Runtime& rt, std::string_view name) {
  rt.FailUnsupported("unknown filter '" + std::string(name) + "'");
}

}  // namespace tandem::engine
