#include "engine/chat/jinja/text_methods.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/jinja/access.h"
#include "engine/chat/jinja/print.h"

namespace tandem::engine {
namespace {

const Text* TextOrNull(Runtime& rt, const Value* value, const char* what) {
  if (value == nullptr || value->is_none()) return nullptr;
  return &RequireText(rt, *value, what);
}

int64_t IntOr(Runtime& rt, const Value* value, int64_t fallback, const char* what) {
  return value == nullptr ? fallback : RequireInt(rt, *value, what);
}

// ---- strings: splitting

Value SplitAtSpaces(Runtime& rt, const TextPtr& text, int64_t max_splits) {
  const std::string_view bytes = text->bytes();
  const auto is_space = [&](const CodePoint& c) { return c.valid && IsSpace(c.value); };
  std::vector<Value> parts;
  size_t at = 0;
  while (true) {
    while (at < bytes.size()) {
      const CodePoint c = ReadCodePoint(bytes, at);
      if (!is_space(c)) break;
      at += c.bytes;
    }
    if (at == bytes.size()) break;
    rt.Step();
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(Value::Of(Substring(rt, text, at, bytes.size())));
      break;
    }
    size_t end = at;
    while (end < bytes.size()) {
      const CodePoint c = ReadCodePoint(bytes, end);
      if (is_space(c)) break;
      end += c.bytes;
    }
    parts.push_back(Value::Of(Substring(rt, text, at, end)));
    at = end;
  }
  return MakeList(rt, std::move(parts));
}

Value Split(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "split", {"sep", "maxsplit"});
  const Text* separator = TextOrNull(rt, bound[0], "split's separator");
  const int64_t max_splits = IntOr(rt, bound[1], -1, "split's maxsplit");
  const TextPtr& text = self.text();
  rt.Work(text->size());
  if (separator == nullptr) return SplitAtSpaces(rt, text, max_splits);
  if (separator->empty()) rt.Fail("split(): empty separator");

  std::vector<Value> parts;
  size_t at = 0;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    rt.Step();
    const size_t hit = FindBytes(text->bytes(), separator->bytes(), at);
    if (hit == std::string_view::npos) break;
    parts.push_back(Value::Of(Substring(rt, text, at, hit)));
    at = hit + separator->size();
  }
  parts.push_back(Value::Of(Substring(rt, text, at, text->size())));
  return MakeList(rt, std::move(parts));
}

// The last `needle` that ends at or before `end`. Quadratic on hostile input, so long comparisons
// are charged.
size_t FindLast(Runtime& rt, std::string_view haystack, std::string_view needle, size_t end) {
  if (needle.empty()) return end;
  rt.Work(end);
  for (size_t at = end >= needle.size() ? end - needle.size() + 1 : 0; at-- > 0;) {
    if (haystack[at] != needle[0]) continue;
    rt.Work(needle.size());
    if (haystack.compare(at, needle.size(), needle) == 0) return at;
  }
  return std::string_view::npos;
}

Value RSplit(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "rsplit", {"sep", "maxsplit"});
  const Text* separator = TextOrNull(rt, bound[0], "rsplit's separator");
  const int64_t max_splits = IntOr(rt, bound[1], -1, "rsplit's maxsplit");
  if (max_splits < 0) return Split(rt, self, arguments);
  if (separator == nullptr) rt.Fail("rsplit() with maxsplit needs a separator");
  if (separator->empty()) rt.Fail("rsplit(): empty separator");

  const TextPtr& text = self.text();
  std::vector<Value> parts;
  size_t end = text->size();
  while (static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t hit = FindLast(rt, text->bytes(), separator->bytes(), end);
    if (hit == std::string_view::npos) break;
    parts.push_back(Value::Of(Substring(rt, text, hit + separator->size(), end)));
    end = hit;
  }
  parts.push_back(Value::Of(Substring(rt, text, 0, end)));
  std::reverse(parts.begin(), parts.end());
  return MakeList(rt, std::move(parts));
}

Value SplitLinesMethod(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "splitlines", {"keepends"});
  const bool keep = bound[0] != nullptr && IsTrue(*bound[0]);
  std::vector<Value> lines;
  for (const Line& line : SplitLines(rt, *self.text())) {
    rt.Step();
    lines.push_back(Value::Of(Substring(rt, self.text(), line.begin, keep ? line.next : line.end)));
  }
  return MakeList(rt, std::move(lines));
}

Value PartitionAt(Runtime& rt, const TextPtr& text, size_t hit, size_t separator_size) {
  std::vector<Value> parts;
  parts.push_back(Value::Of(Substring(rt, text, 0, hit)));
  parts.push_back(Value::Of(Substring(rt, text, hit, hit + separator_size)));
  parts.push_back(Value::Of(Substring(rt, text, hit + separator_size, text->size())));
  return MakeList(rt, std::move(parts), ListKind::kTuple);
}

Value Partition(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "partition", {"sep"}, 1);
  const Text& separator = RequireText(rt, *bound[0], "partition's separator");
  if (separator.empty()) rt.Fail("partition(): empty separator");
  rt.Work(self.text()->size());
  const size_t hit = FindBytes(self.text()->bytes(), separator.bytes(), 0);
  if (hit != std::string_view::npos) return PartitionAt(rt, self.text(), hit, separator.size());
  return PartitionAt(rt, self.text(), self.text()->size(), 0);
}

Value RPartition(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "rpartition", {"sep"}, 1);
  const Text& separator = RequireText(rt, *bound[0], "rpartition's separator");
  if (separator.empty()) rt.Fail("rpartition(): empty separator");
  const size_t hit = FindLast(rt, self.text()->bytes(), separator.bytes(), self.text()->size());
  if (hit != std::string_view::npos) return PartitionAt(rt, self.text(), hit, separator.size());
  return PartitionAt(rt, self.text(), 0, 0);
}

// ---- strings: trimming and replacing

template <Side side>
Value StripMethod(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "strip", {"chars"});
  return Value::Of(Strip(rt, self.text(), TextOrNull(rt, bound[0], "strip's argument"), side));
}

Value ReplaceMethod(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "replace", {"old", "new", "count"}, 2);
  return Value::Of(Replace(rt, self.text(), RequireText(rt, *bound[0], "replace's first argument"),
                           RequireText(rt, *bound[1], "replace's second argument"),
                           IntOr(rt, bound[2], -1, "replace's count")));
}

Value RemovePrefix(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "removeprefix", {"prefix"}, 1);
  const Text& prefix = RequireText(rt, *bound[0], "removeprefix's argument");
  const TextPtr& text = self.text();
  if (!text->bytes().starts_with(prefix.bytes())) return self;
  return Value::Of(Substring(rt, text, prefix.size(), text->size()));
}

Value RemoveSuffix(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "removesuffix", {"suffix"}, 1);
  const Text& suffix = RequireText(rt, *bound[0], "removesuffix's argument");
  const TextPtr& text = self.text();
  if (!text->bytes().ends_with(suffix.bytes())) return self;
  return Value::Of(Substring(rt, text, 0, text->size() - suffix.size()));
}

// ---- strings: letters

template <TextPtr (*transform)(Runtime&, const Text&)>
Value TransformMethod(Runtime& rt, const Value& self, const Arguments& arguments) {
  Bind(rt, arguments, "the method", {});
  return Value::Of(transform(rt, *self.text()));
}

// Upper case after every character that is not a letter, as str.title (the filter differs).
TextPtr TitleLetters(Runtime& rt, const Text& text) {
  TextBuilder out(rt);
  bool in_word = false;
  text.ForEachRun(0, text.size(), [&](std::string_view part, bool from_client) {
    std::string mapped;
    for (size_t i = 0; i < part.size();) {
      const CodePoint c = ReadCodePoint(part, i);
      if (c.valid) {
        in_word ? AppendLower(mapped, c.value) : AppendTitle(mapped, c.value);
        in_word = IsAlpha(c.value);
      } else {
        mapped.push_back(part[i]);
        in_word = false;
      }
      i += c.bytes;
    }
    out.Append(mapped, from_client);
  });
  return out.Take();
}

void AppendSwapped(std::string& out, char32_t c) {
  IsUpper(c) ? AppendLower(out, c) : AppendUpper(out, c);
}

TextPtr SwapCase(Runtime& rt, const Text& text) {
  TextBuilder out(rt);
  text.ForEachRun(0, text.size(), [&](std::string_view part, bool from_client) {
    std::string swapped;
    for (size_t i = 0; i < part.size();) {
      const CodePoint c = ReadCodePoint(part, i);
      c.valid ? AppendSwapped(swapped, c.value) : swapped.push_back(part[i]);
      i += c.bytes;
    }
    out.Append(swapped, from_client);
  });
  return out.Take();
}

template <bool (*test)(char32_t)>
Value AllAre(Runtime& rt, const Value& self, const Arguments& arguments) {
  Bind(rt, arguments, "the method", {});
  const std::string_view bytes = self.text()->bytes();
  rt.Work(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const CodePoint c = ReadCodePoint(bytes, i);
    if (!c.valid || !test(c.value)) return Value::Bool(false);
    i += c.bytes;
  }
  return Value::Bool(!bytes.empty());
}

template <bool (*wanted)(char32_t), bool (*other)(char32_t)>
Value HasCase(Runtime& rt, const Value& self, const Arguments& arguments) {
  Bind(rt, arguments, "the method", {});
  rt.Work(self.text()->size());
  return Value::Bool(HasOnlyCase(self.text()->bytes(), wanted, other));
}

// ---- strings: searching

// The part of a string selected by the optional start and end of a search. They count code points,
// from the end if negative.
struct Window {
  std::string_view bytes;
  size_t before = 0;   // code points before it
  bool exists = true;  // false: it would begin after the end, or end before its start
};

Window WindowOf(Runtime& rt, const Text& text, const Value* start, const Value* end) {
  const auto given = [](const Value* bound) { return bound != nullptr && !bound->is_none(); };
  rt.Work(text.size());
  if (!given(start) && !given(end)) return {text.bytes()};
  const auto length = static_cast<int64_t>(CountCodePoints(text.bytes()));
  const auto resolve = [&](const Value* bound, int64_t absent) {
    if (!given(bound)) return absent;
    const int64_t index = RequireInt(rt, *bound, "a position in a string");
    if (index >= 0) return index;
    return index < -length ? 0 : index + length;
  };
  const int64_t first = resolve(start, 0);
  const int64_t last = std::min(resolve(end, length), length);
  if (first > last) return {{}, 0, false};
  size_t begin = 0;
  for (int64_t i = 0; i < first; ++i) begin += ReadCodePoint(text.bytes(), begin).bytes;
  size_t stop = begin;
  for (int64_t i = first; i < last; ++i) stop += ReadCodePoint(text.bytes(), stop).bytes;
  return {text.bytes().substr(begin, stop - begin), static_cast<size_t>(first)};
}

template <bool at_end>
Value StartsOrEndsWith(Runtime& rt, const Value& self, const Arguments& arguments) {
  const char* name = at_end ? "endswith" : "startswith";
  const auto bound = Bind(rt, arguments, name, {"affix", "start", "end"}, 1);
  const Window window = WindowOf(rt, *self.text(), bound[1], bound[2]);
  const auto matches = [&](const Value& affix) {
    rt.Step();
    const Text& text = RequireText(rt, affix, name);
    rt.Work(text.size());
    if (!window.exists) return false;
    return at_end ? window.bytes.ends_with(text.bytes()) : window.bytes.starts_with(text.bytes());
  };
  if (bound[0]->is(Value::Type::kList) && bound[0]->list().kind == ListKind::kTuple) {
    const std::vector<Value>& affixes = bound[0]->list().items;
    return Value::Bool(std::any_of(affixes.begin(), affixes.end(), matches));
  }
  return Value::Bool(matches(*bound[0]));
}

template <bool from_end>
Value FindText(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "find", {"sub", "start", "end"}, 1);
  const std::string_view needle = RequireText(rt, *bound[0], "the text to find").bytes();
  const Window window = WindowOf(rt, *self.text(), bound[1], bound[2]);
  if (!window.exists) return Value::Int(-1);
  const size_t hit = from_end ? FindLast(rt, window.bytes, needle, window.bytes.size())
                              : FindBytes(window.bytes, needle, 0);
  if (hit == std::string_view::npos) return Value::Int(-1);
  return Value::Int(
      static_cast<int64_t>(window.before + CountCodePoints(window.bytes.substr(0, hit))));
}

template <bool from_end>
Value IndexOfText(Runtime& rt, const Value& self, const Arguments& arguments) {
  Value found = FindText<from_end>(rt, self, arguments);
  if (found.integral() < 0) rt.Fail("index(): the substring was not found");
  return found;
}

Value CountText(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "count", {"sub", "start", "end"}, 1);
  const std::string_view needle = RequireText(rt, *bound[0], "count's argument").bytes();
  const Window window = WindowOf(rt, *self.text(), bound[1], bound[2]);
  if (!window.exists) return Value::Int(0);
  if (needle.empty()) return Value::Int(static_cast<int64_t>(CountCodePoints(window.bytes)) + 1);
  int64_t count = 0;
  for (size_t at = FindBytes(window.bytes, needle, 0); at != std::string_view::npos;
       at = FindBytes(window.bytes, needle, at + needle.size())) {
    ++count;
  }
  return Value::Int(count);
}

bool IsAsciiOnly(char32_t c) { return c < 0x80; }

Value IsAscii(Runtime& rt, const Value& self, const Arguments& arguments) {
  return Value::Bool(self.text()->empty() || AllAre<IsAsciiOnly>(rt, self, arguments).as_bool());
}

// ---- strings: filling up to a width

enum class Fill { kLeft, kRight, kBoth, kZeros };

template <Fill fill>
Value FillMethod(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "the method", {"width", "fillchar"}, 1);
  if (fill == Fill::kZeros && bound[1] != nullptr) rt.Fail("zfill() takes one argument");
  const Text& text = *self.text();
  const int64_t width = RequireInt(rt, *bound[0], "the width");
  const TextPtr usual = Text::Make(fill == Fill::kZeros ? "0" : " ", false);
  const Text& unit =
      bound[1] == nullptr ? *usual : RequireText(rt, *bound[1], "the fill character");
  rt.Work(text.size());
  if (CountCodePoints(unit.bytes()) != 1) rt.Fail("the fill character must be one character");
  const auto length = static_cast<int64_t>(CountCodePoints(text.bytes()));
  if (width <= length) return self;
  const int64_t missing = width - length;
  int64_t left = 0;
  if (fill == Fill::kLeft || fill == Fill::kZeros) left = missing;
  if (fill == Fill::kBoth) left = missing / 2 + (missing & width & 1);  // as str.center rounds
  const bool has_sign = !text.empty() && (text.bytes()[0] == '-' || text.bytes()[0] == '+');
  const size_t in_front = fill == Fill::kZeros && has_sign ? 1 : 0;
  TextBuilder out(rt);
  out.Append(text, 0, in_front);
  out.Append(*Repeat(rt, unit, left));
  out.Append(text, in_front, text.size());
  out.Append(*Repeat(rt, unit, missing - left));
  return Value::Of(out.Take());
}

// ---- strings: building

Value JoinMethod(Runtime& rt, const Value& self, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "join", {"iterable"}, 1);
  TextBuilder out(rt);
  bool first = true;
  for (const Value& item : Elements(rt, *bound[0])) {
    rt.Step();
    if (!first) out.Append(*self.text());
    first = false;
    out.Append(RequireText(rt, item, "an element given to join"));
  }
  return Value::Of(out.Take());
}

// {} {0} {name}: no attributes, no format specifications.
Value FormatMethod(Runtime& rt, const Value& self, const Arguments& arguments) {
  const Text& format = *self.text();
  const std::string_view bytes = format.bytes();
  TextBuilder out(rt);
  size_t next = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.Append(format, at, brace);
    if (brace == bytes.size()) break;
    if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
      out.Append(format, brace, brace + 1);
      at = brace + 2;
      continue;
    }
    const size_t close = bytes.find('}', brace);
    if (bytes[brace] == '}' || close == std::string_view::npos) {
      rt.Fail("format(): single brace in the format string");
    }
    const std::string field(bytes.substr(brace + 1, close - brace - 1));
    const Value* value = nullptr;
    if (field.empty() || field.find_first_not_of("0123456789") == std::string::npos) {
      if (field.size() > 6) rt.Fail("format(): no argument '" + field + "'");
      const size_t index = field.empty() ? next++ : static_cast<size_t>(std::stoul(field));
      if (index < arguments.positional.size()) value = &arguments.positional[index];
    } else {
      for (const auto& [name, named] : arguments.named) {
        if (name == field) value = &named;
      }
    }
    if (value == nullptr) rt.Fail("format(): no argument '" + field + "'");
    AppendText(out, *value);
    at = close + 1;
  }
  return Value::Of(out.Take());
}

}  // namespace

const MethodTable& TextMethods() {
  static const MethodTable table = {
      {"capitalize", TransformMethod<Capitalize>},
      {"center", FillMethod<Fill::kBoth>},
      {"count", CountText},
      {"endswith", StartsOrEndsWith<true>},
      {"find", FindText<false>},
      {"format", FormatMethod},
      {"index", IndexOfText<false>},
      {"isalnum", AllAre<IsAlnum>},
      {"isalpha", AllAre<IsAlpha>},
      {"isascii", IsAscii},
      {"isdecimal", AllAre<IsDigit>},
      {"isdigit", AllAre<IsDigit>},
      {"islower", HasCase<IsLower, IsUpper>},
      {"isnumeric", AllAre<IsDigit>},
      {"isspace", AllAre<IsSpace>},
      {"isupper", HasCase<IsUpper, IsLower>},
      {"join", JoinMethod},
      {"ljust", FillMethod<Fill::kRight>},
      {"lower", TransformMethod<Lower>},
      {"lstrip", StripMethod<Side::kLeft>},
      {"partition", Partition},
      {"removeprefix", RemovePrefix},
      {"removesuffix", RemoveSuffix},
      {"replace", ReplaceMethod},
      {"rfind", FindText<true>},
      {"rindex", IndexOfText<true>},
      {"rjust", FillMethod<Fill::kLeft>},
      {"rpartition", RPartition},
      {"rsplit", RSplit},
      {"rstrip", StripMethod<Side::kRight>},
      {"split", Split},
      {"splitlines", SplitLinesMethod},
      {"startswith", StartsOrEndsWith<false>},
      {"strip", StripMethod<Side::kBoth>},
      {"swapcase", TransformMethod<SwapCase>},
      {"title", TransformMethod<TitleLetters>},
      {"upper", TransformMethod<Upper>},
      {"zfill", FillMethod<Fill::kZeros>},
  };
  return table;
}

}  // namespace tandem::engine
