#include "engine/chat/jinja/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace tandem::engine {
namespace {

std::string Hex(const char* format, char32_t value) {
  char buffer[16];
  std::snprintf(buffer, sizeof(buffer), format, static_cast<unsigned>(value));
  return buffer;
}

// The escapes that Python's repr and JSON share. Returns false for other code points.
bool AppendSharedEscape(std::string& out, char32_t value) {
  switch (value) {
    case '\n':
      out += "\\n";
      return true;
    case '\r':
      out += "\\r";
      return true;
    case '\t':
      out += "\\t";
      return true;
    case '\\':
      out += "\\\\";
      return true;
    default:
      return false;
  }
}

// Appends `text` and passes every code point to escape(std::string& out, CodePoint). That function
// appends a replacement and returns true, or returns false to keep the code point. `client`: all of
// it counts as a client's.
template <class Escape>
void AppendEscaped(TextBuilder& out, const Text& text, bool client, Escape escape) {
  text.ForEachRun(0, text.size(), [&](std::string_view part, bool from_client) {
    std::string escaped;
    for (size_t i = 0; i < part.size();) {
      const CodePoint c = ReadCodePoint(part, i);
      if (!escape(escaped, c)) escaped.append(part.substr(i, c.bytes));
      i += c.bytes;
    }
    out.Append(escaped, client || from_client);
  });
}

void AppendTextRepr(TextBuilder& out, const Text& text) {
  const std::string_view bytes = text.bytes();
  const bool single = bytes.find('\'') != std::string_view::npos;
  const char quote = single && bytes.find('"') == std::string_view::npos ? '"' : '\'';
  const bool client = text.any_client();
  out.Append(std::string_view(&quote, 1), client);
  AppendEscaped(out, text, false, [quote](std::string& escaped, const CodePoint& c) {
    if (AppendSharedEscape(escaped, c.value)) return true;
    if (c.value == static_cast<char32_t>(quote)) {
      escaped += '\\';
      escaped += quote;
      return true;
    }
    if (!c.valid || IsPrintable(c.value)) return false;
    escaped += Hex(c.value < 0x100     ? "\\x%02x"
                   : c.value < 0x10000 ? "\\u%04x"
                                       : "\\U%08x",
                   c.value);
    return true;
  });
  out.Append(std::string_view(&quote, 1), client);
}

void AppendListRepr(TextBuilder& out, const List& list) {
  const bool tuple = list.kind == ListKind::kTuple;
  out.Append(tuple ? "(" : "[", list.from_client);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.Append(", ", list.from_client);
    AppendRepr(out, list.items[i]);
  }
  if (tuple && list.items.size() == 1) out.Append(",", list.from_client);
  out.Append(tuple ? ")" : "]", list.from_client);
}

void AppendDictRepr(TextBuilder& out, const Dict& dict) {
  out.Append("{", dict.from_client);
  for (size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) out.Append(", ", dict.from_client);
    AppendRepr(out, dict.entries[i].first);
    out.Append(": ", dict.from_client);
    AppendRepr(out, dict.entries[i].second);
  }
  out.Append("}", dict.from_client);
}

class JsonWriter {
 public:
  JsonWriter(TextBuilder& out, const JsonStyle& style) : out_(out), style_(style) {}

  void Write(const Value& value, size_t level, bool client) {
    Runtime& rt = out_.runtime();
    rt.Step();
    switch (value.type()) {
      case Value::Type::kNone:
        return out_.Append("null", client);
      case Value::Type::kBool:
        return out_.Append(value.as_bool() ? "true" : "false", client);
      case Value::Type::kInt:
        return out_.Append(std::to_string(value.integral()), client);
      case Value::Type::kWideInt:
        return out_.Append(value.digits(), client);
      case Value::Type::kFloat:
        return out_.Append(Number(value.as_float()), client);
      case Value::Type::kText:
        return WriteText(*value.text(), client);
      case Value::Type::kList:
        return WriteList(value.list(), level, client || value.list().from_client);
      case Value::Type::kDict:
        return WriteDict(value.dict(), level, client || value.dict().from_client);
      case Value::Type::kUndefined:
        rt.Fail("tojson: " + value.why_undefined());
      default:
        rt.Fail("tojson: an object of type " + TypeName(value) + " is not JSON");
    }
  }

 private:
  static std::string Number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return FloatRepr(value);
  }

  void WriteText(const Text& text, bool enclosed) {
    const bool client = enclosed || text.any_client();
    out_.Append("\"", client);
    AppendEscaped(out_, text, enclosed, [this](std::string& escaped, const CodePoint& c) {
      if (AppendSharedEscape(escaped, c.value)) return true;
      switch (c.value) {
        case '"':
          escaped += "\\\"";
          return true;
        case '\b':
          escaped += "\\b";
          return true;
        case '\f':
          escaped += "\\f";
          return true;
        default:
          break;
      }
      const bool plain = c.value >= 0x20 && (c.value < 0x7F || !style_.ensure_ascii);
      if (plain || !c.valid) return false;
      if (c.value < 0x10000) {
        escaped += Hex("\\u%04x", c.value);
      } else {
        escaped += Hex("\\u%04x", 0xD800 + ((c.value - 0x10000) >> 10));
        escaped += Hex("\\u%04x", 0xDC00 + ((c.value - 0x10000) & 0x3FF));
      }
      return true;
    });
    out_.Append("\"", client);
  }

  void WriteList(const List& list, size_t level, bool client) {
    if (list.items.empty()) return out_.Append("[]", client);
    out_.Append("[", client);
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_.Append(style_.item_separator, client || style_.from_client);
      Break(level + 1, client);
      Write(list.items[i], level + 1, client);
    }
    Break(level, client);
    out_.Append("]", client);
  }

  void WriteDict(const Dict& dict, size_t level, bool client) {
    if (dict.entries.empty()) return out_.Append("{}", client);
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [this](const auto* a, const auto* b) {
        return Less(out_.runtime(), a->first, b->first);
      });
    }
    out_.Append("{", client);
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.Append(style_.item_separator, client || style_.from_client);
      Break(level + 1, client);
      WriteKey(entries[i]->first, client);
      out_.Append(style_.key_separator, client || style_.from_client);
      Write(entries[i]->second, level + 1, client);
    }
    Break(level, client);
    out_.Append("}", client);
  }

  void WriteKey(const Value& key, bool client) {
    if (key.is(Value::Type::kText)) return WriteText(*key.text(), client);
    if (!key.is_number() && !key.is_none()) {
      out_.runtime().Fail("tojson: a key must be a string or number, got '" + TypeName(key) + "'");
    }
    out_.Append("\"", client);
    Write(key, 0, client);
    out_.Append("\"", client);
  }

  void Break(size_t level, bool client) {
    if (!style_.indent.has_value()) return;
    out_.Append("\n", client);
    for (size_t i = 0; i < level; ++i) out_.Append(*style_.indent, client || style_.from_client);
  }

  TextBuilder& out_;
  const JsonStyle& style_;
};

}  // namespace

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // "d.ddde±xx" with the fewest digits; for small exponents the code below moves the point, as
  // Python does.
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  const size_t e = text.find('e');
  const int exponent = std::atoi(text.c_str() + e + 1);
  std::string sign = text[0] == '-' ? "-" : "";
  std::string digits = text.substr(sign.size(), e - sign.size());
  if (digits.size() > 1) digits.erase(1, 1);
  if (exponent < -4 || exponent >= 16) {
    std::string out = sign + digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    char suffix[16];
    std::snprintf(suffix, sizeof(suffix), "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return out + suffix;
  }
  if (exponent < 0) {
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  }
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

void AppendRepr(TextBuilder& out, const Value& value) {
  out.runtime().Step();
  switch (value.type()) {
    case Value::Type::kUndefined:
      return out.Append("Undefined", false);
    case Value::Type::kNone:
      return out.Append("None", false);
    case Value::Type::kBool:
      return out.Append(value.as_bool() ? "True" : "False", false);
    case Value::Type::kInt:
      return out.Append(std::to_string(value.integral()), false);
    case Value::Type::kWideInt:
      return out.Append(value.digits(), false);
    case Value::Type::kFloat:
      return out.Append(FloatRepr(value.as_float()), false);
    case Value::Type::kText:
      return AppendTextRepr(out, *value.text());
    case Value::Type::kList:
      return AppendListRepr(out, value.list());
    case Value::Type::kDict:
      return AppendDictRepr(out, value.dict());
    case Value::Type::kNamespace:
      return out.Append("<Namespace>", false);
    case Value::Type::kLoop:
      return out.Append("<LoopContext>", false);
    case Value::Type::kCallable:
      return out.Append("<function " + value.callable().name + ">", false);
  }
}

void AppendText(TextBuilder& out, const Value& value) {
  if (value.is_undefined()) return;
  if (value.is(Value::Type::kText)) return out.Append(*value.text());
  AppendRepr(out, value);
}

TextPtr ToText(Runtime& rt, const Value& value) {
  if (value.is(Value::Type::kText)) return value.text();
  TextBuilder out(rt);
  AppendText(out, value);
  return out.Take();
}

void AppendJson(TextBuilder& out, const Value& value, const JsonStyle& style) {
  JsonWriter(out, style).Write(value, 0, false);
}

}  // namespace tandem::engine
