#include "engine/chat/answers/literal_calls.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/utf8.h"
#include "engine/chat/answers/json_scanner.h"
#include "engine/chat/answers/partial_mark.h"

namespace tandem::engine {
namespace {

constexpr int kMaxLiteralDepth = 64;
constexpr std::string_view kNameBytes =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";

// Reads values and appends them as JSON. Every function returns false at the first byte that the
// syntax does not allow.
class LiteralReader {
 public:
  LiteralReader(std::string_view text, LiteralSyntax syntax) : text_(text), syntax_(syntax) {}

  bool is_at_end() {
    SkipSpace();
    return text_.empty();
  }
  bool Take(std::string_view word) {
    SkipSpace();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  bool Name(std::string& out) {
    SkipSpace();
    const size_t end = std::min(text_.find_first_not_of(kNameBytes), text_.size());
    out = text_.substr(0, end);
    text_.remove_prefix(end);
    return !out.empty();
  }

  // Members up to `close`, which is taken: `a=1)` or `a:1}`.
  bool Members(std::string& json, std::string_view colon, std::string_view close, int depth) {
    json.push_back('{');
    bool is_first = true;
    while (!Take(close)) {
      if (!is_first && !Take(",")) return false;
      if (!is_first && Take(close)) break;  // a comma at the end
      if (!is_first) json += ", ";
      is_first = false;
      std::string key;
      if (!Key(key, colon) || !Take(colon)) return false;
      json += ToJsonString(key);
      json += ": ";
      if (!Value(json, depth)) return false;
    }
    json.push_back('}');
    return true;
  }

 private:
  void SkipSpace() {
    text_.remove_prefix(std::min(text_.find_first_not_of(kWhiteSpace), text_.size()));
  }

  bool Key(std::string& key, std::string_view colon) {
    SkipSpace();
    if (OpensText()) return Text(key);
    if (syntax_.is_python) return colon == "=" && Name(key);
    const size_t end = text_.find_first_of(":{}[],");
    if (end == std::string_view::npos || end == 0) return false;
    key = text_.substr(0, end);
    text_.remove_prefix(end);
    return true;
  }

  bool OpensText() const {
    if (text_.empty()) return false;
    // Some templates write lists and objects as JSON within keyed values.
    if (OpensMarkedText()) return true;
    return text_.front() == '"' || (syntax_.quote.empty() && text_.front() == '\'');
  }

  bool OpensMarkedText() const {
    return !syntax_.quote.empty() && text_.starts_with(syntax_.quote);
  }

  bool Value(std::string& json, int depth) {
    if (depth == kMaxLiteralDepth) return false;
    SkipSpace();
    if (text_.empty()) return false;
    if (OpensText()) {
      std::string text;
      if (!Text(text)) return false;
      json += ToJsonString(text);
      return true;
    }
    if (Take("{")) return Members(json, ":", "}", depth + 1);
    if (Take("[")) return List(json, "]", depth + 1);
    if (syntax_.is_python && Take("(")) return List(json, ")", depth + 1);
    return Word(json);
  }

  bool List(std::string& json, std::string_view close, int depth) {
    json.push_back('[');
    bool is_first = true;
    while (!Take(close)) {
      if (!is_first && !Take(",")) return false;
      if (!is_first && Take(close)) break;
      if (!is_first) json += ", ";
      is_first = false;
      if (!Value(json, depth)) return false;
    }
    json.push_back(']');
    return true;
  }

  // A constant or a number.
  bool Word(std::string& json) {
    const size_t end = std::min(text_.find_first_of(" \t\r\n,:()[]{}"), text_.size());
    const std::string_view word = text_.substr(0, end);
    text_.remove_prefix(end);
    static constexpr std::pair<std::string_view, std::string_view> kPython[] = {
        {"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (const auto& [python, constant] : kPython) {
      if (word != constant && !(syntax_.is_python && word == python)) continue;
      json += constant;
      return true;
    }
    const bool is_number =
        !word.empty() && word.find_first_not_of("0123456789+-.eE") == std::string_view::npos;
    if (!is_number || !IsJsonValue(word)) return false;
    json += word;
    return true;
  }

  // REQUIRES: OpensText().
  bool Text(std::string& out) {
    if (OpensMarkedText()) {
      const size_t end = text_.find(syntax_.quote, syntax_.quote.size());
      if (end == std::string_view::npos) return false;
      out = text_.substr(syntax_.quote.size(), end - syntax_.quote.size());
      text_.remove_prefix(end + syntax_.quote.size());
      return true;
    }
    const char quote = text_.front();
    text_.remove_prefix(1);
    while (!text_.empty() && text_.front() != quote) {
      const char byte = text_.front();
      text_.remove_prefix(1);
      if (byte == '\n') return false;
      if (byte != '\\') {
        out.push_back(byte);
      } else if (!Escape(out)) {
        return false;
      }
    }
    if (text_.empty()) return false;
    text_.remove_prefix(1);
    return true;
  }

  bool Escape(std::string& out) {
    if (text_.empty()) return false;
    const char byte = text_.front();
    text_.remove_prefix(1);
    static constexpr std::string_view kLetters = "bfntr\\'\"/", kBytes = "\b\f\n\t\r\\'\"/";
    if (const size_t i = kLetters.find(byte); i != std::string_view::npos) {
      out.push_back(kBytes[i]);
      return true;
    }
    if (byte == 'x' || byte == 'u') return CodePoint(out, byte == 'x' ? 2 : 4);
    // Python keeps the backslash of an unknown escape.
    out.push_back('\\');
    out.push_back(byte);
    return true;
  }

  bool HexDigits(size_t n_digits, uint32_t& code) {
    if (text_.size() < n_digits) return false;
    const auto [end, fault] = std::from_chars(text_.data(), text_.data() + n_digits, code, 16);
    if (fault != std::errc() || end != text_.data() + n_digits) return false;
    text_.remove_prefix(n_digits);
    return true;
  }

  // Joins the halves of a surrogate pair; half a pair alone is a fault.
  bool CodePoint(std::string& out, size_t n_digits) {
    uint32_t code = 0;
    if (!HexDigits(n_digits, code)) return false;
    if (code >= 0xD800 && code < 0xDC00) {
      uint32_t low = 0;
      if (!text_.starts_with("\\u")) return false;
      text_.remove_prefix(2);
      if (!HexDigits(4, low) || low < 0xDC00 || low > 0xDFFF) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if ((code >= 0xDC00 && code < 0xE000) || code > 0x10FFFF) {
      return false;
    }
    AppendUtf8(code, out);
    return true;
  }

  std::string_view text_;
  const LiteralSyntax syntax_;
};

}  // namespace

std::optional<size_t> LiteralEnd::Find(std::string_view text) {
  const std::string_view mark = syntax_.quote;
  for (; at_ < text.size(); ++at_) {
    const std::string_view rest = text.substr(at_);
    if (!mark.empty() && quote_ != '"' && rest.front() == mark.front()) {
      if (rest.size() < mark.size() && mark.starts_with(rest)) return std::nullopt;
      if (rest.starts_with(mark)) {
        quote_ = quote_ == 0 ? kMarkedText : 0;
        at_ += mark.size() - 1;
        continue;
      }
    }
    const char byte = rest.front();
    if (quote_ != 0) {
      if (byte == '\\' && quote_ != kMarkedText) {
        if (rest.size() < 2) return std::nullopt;
        ++at_;
      } else if (byte == quote_ && quote_ != kMarkedText) {
        quote_ = 0;
      }
    } else if (byte == '"' || (byte == '\'' && mark.empty())) {
      quote_ = byte;
    } else if (byte == '[' || byte == '{' || byte == '(') {
      ++depth_;
    } else if (byte == ']' || byte == '}' || byte == ')') {
      if (--depth_ <= 0) return ++at_;
    }
  }
  return std::nullopt;
}

std::optional<std::vector<WrittenCall>> ReadPythonicCalls(std::string_view text) {
  LiteralReader reader(text, {.is_python = true});
  std::vector<WrittenCall> calls;
  if (!reader.Take("[")) return std::nullopt;
  do {
    WrittenCall& call = calls.emplace_back();
    if (!reader.Name(call.name) || !reader.Take("(")) return std::nullopt;
    if (!reader.Members(call.arguments, "=", ")", 1)) return std::nullopt;
  } while (reader.Take(","));
  if (!reader.Take("]") || !reader.is_at_end()) return std::nullopt;
  return calls;
}

std::optional<WrittenCall> ReadKeyedCall(std::string_view text, std::string_view quote) {
  LiteralReader reader(text, {.quote = quote});
  WrittenCall call;
  if (!reader.Take("call:") || !reader.Name(call.name) || !reader.Take("{")) return std::nullopt;
  if (!reader.Members(call.arguments, ":", "}", 1) || !reader.is_at_end()) return std::nullopt;
  return call;
}

std::string ToJsonString(std::string_view text) {
  using Json = nlohmann::ordered_json;
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool IsJsonValue(std::string_view text) {
  // A list ends a number.
  JsonScanner scanner;
  JsonScanner::Status status = scanner.Feed('[');
  for (const char byte : text) {
    if (status == JsonScanner::Status::kBad || scanner.depth() == 0) return false;
    status = scanner.Feed(byte);
    if (scanner.depth() == 1 && byte == ',') return false;
  }
  const bool has_value = text.find_first_not_of(kWhiteSpace) != std::string_view::npos;
  return has_value && scanner.depth() == 1 && scanner.Feed(']') == JsonScanner::Status::kDone;
}

}  // namespace tandem::engine
