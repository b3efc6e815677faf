// Filters of text.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/jinja/filter_tables.h"
#include "engine/chat/jinja/percent_format.h"
#include "engine/chat/jinja/print.h"

namespace tandem::engine {
namespace {

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
  const bool blank = FilterFlag(bound[2]);

  TextBuilder out(rt);
  if (FilterFlag(bound[1])) out.Append(*indent);
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
  style.ensure_ascii = FilterFlag(bound[0]);
  style.indent = JsonIndent(rt, bound[1]);
  style.from_client = bound[1] != nullptr && IsText(*bound[1]) && bound[1]->text()->any_client();
  style.sort_keys = FilterFlag(bound[3]);
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

}  // namespace

const FilterTable& TextFilters() {
  static const FilterTable table = {
      {"capitalize", TransformFilter<Capitalize>},
      {"e", TransformFilter<EscapeHtml>},
      {"escape", TransformFilter<EscapeHtml>},
      {"forceescape", TransformFilter<EscapeHtml>},
      {"format", FormatFilter},
      {"indent", IndentFilter},
      {"lower", TransformFilter<Lower>},
      {"replace", ReplaceFilter},
      {"safe", SafeFilter},
      {"string", StringFilter},
      {"title", TransformFilter<TitleWords>},
      {"tojson", ToJson},
      {"trim", TrimFilter},
      {"upper", TransformFilter<Upper>},
      {"wordcount", WordCount},
  };
  return table;
}

}  // namespace tandem::engine
