#include "engine/chat/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "engine/base/ascii.h"
#include "engine/base/utf8.h"
#include "engine/chat/jinja/text.h"

namespace tandem::engine {
namespace {

bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsDecimal(char c) { return c >= '0' && c <= '9'; }
bool IsNamePart(char c) { return IsNameStart(c) || IsDecimal(c); }

std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
    } else {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {
    for (size_t i = 0; i < source_.size(); ++i) {
      if (source_[i] == '\n') line_starts_.push_back(i + 1);
    }
  }

  std::vector<Token> Run() {
    while (at_ < source_.size()) LexText();
    Emit(TokenKind::kEnd, "", at_);
    return std::move(tokens_);
  }

 private:
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  bool StartsWith(size_t offset, std::string_view text) const {
    return source_.compare(offset, text.size(), text) == 0;
  }

  SourcePosition PositionOf(size_t offset) const {
    const auto next = std::upper_bound(line_starts_.begin(), line_starts_.end(), offset);
    const auto line = static_cast<uint32_t>(next - line_starts_.begin());
    return {line, static_cast<uint32_t>(offset - line_starts_[line - 1] + 1)};
  }

  [[noreturn]] void Fail(size_t offset, const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, DescribeFault(PositionOf(offset), what));
  }

  void Emit(TokenKind kind, std::string text, size_t offset) {
    tokens_.push_back({kind, std::move(text), PositionOf(offset)});
  }

  size_t SkipSpace(size_t offset) const {
    while (offset < source_.size()) {
      const CodePoint c = ReadCodePoint(source_, offset);
      if (!c.valid || !IsSpace(c.value)) break;
      offset += c.bytes;
    }
    return offset;
  }

  // Start of the white space before `end`; at least `begin`.
  size_t SkipSpaceBack(size_t begin, size_t end) const {
    size_t kept = begin;
    for (size_t i = begin; i < end;) {
      const CodePoint c = ReadCodePoint(source_, i);
      i += c.bytes;
      if (!c.valid || !IsSpace(c.value)) kept = i;
    }
    return std::min(kept, end);
  }

  // The end of the text [begin, end) after the white space control of the next tag: `-` strips
  // everything, `+` nothing. Otherwise lstrip_blocks drops an indentation that fills its line,
  // before blocks and comments only.
  size_t TrimBeforeTag(size_t begin, size_t end, char sign, bool is_variable) const {
    if (sign == '-') return SkipSpaceBack(begin, end);
    if (sign == '+' || is_variable) return end;
    // Never search before `begin`: that would be quadratic in a template of one long line.
    const std::string_view text = std::string_view(source_).substr(begin, end - begin);
    const size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !line_starting_) return end;
    const size_t line = newline == std::string_view::npos ? begin : begin + newline + 1;
    return SkipSpaceBack(line, end) == line ? line : end;
  }

  // Position after the end of a block or comment: `-` skips white space, otherwise trim_blocks
  // skips one newline.
  size_t TrimAfterTag(size_t offset, char sign) const {
    if (sign == '-') return SkipSpace(offset);
    if (sign != '+' && offset < source_.size() && source_[offset] == '\n') return offset + 1;
    return offset;
  }

  void MoveTo(size_t offset) {
    if (offset > at_) line_starting_ = source_[offset - 1] == '\n';
    at_ = offset;
  }

  void EmitText(size_t begin, size_t end) {
    if (begin < end) Emit(TokenKind::kText, source_.substr(begin, end - begin), begin);
  }

  // One run of text and the tag after it.
  void LexText() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        EmitText(at_, source_.size());
        at_ = source_.size();
        return;
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    const char kind = source_[tag + 1];
    char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (sign != '-' && sign != '+') sign = '\0';
    EmitText(at_, TrimBeforeTag(at_, tag, sign, kind == '{'));

    MoveTo(tag + (sign == '\0' ? 2 : 3));
    if (kind == '#') {
      LexComment(tag);
    } else if (kind == '{') {
      Emit(TokenKind::kVariableBegin, "{{", tag);
      LexTag(tag, TokenKind::kVariableEnd);
    } else if (const std::optional<size_t> body = RawBegin()) {
      LexRaw(tag, *body);
    } else {
      Emit(TokenKind::kBlockBegin, "{%", tag);
      LexTag(tag, TokenKind::kBlockEnd);
    }
  }

  void LexComment(size_t tag) {
    const size_t close = source_.find("#}", at_);
    if (close == std::string::npos) Fail(tag, "the comment is not closed");
    const char sign = close > at_ ? source_[close - 1] : '\0';
    MoveTo(TrimAfterTag(close + 2, sign));
  }

  // After `{%`: the start of a raw block's text, if this is one.
  std::optional<size_t> RawBegin() const {
    size_t i = SkipSpace(at_);
    if (!StartsWith(i, "raw")) return std::nullopt;
    i = SkipSpace(i + 3);
    if (StartsWith(i, "-%}")) return SkipSpace(i + 3);
    if (StartsWith(i, "%}")) return i + 2;
    return std::nullopt;
  }

  void LexRaw(size_t tag, size_t body) {
    MoveTo(body);
    for (size_t end = body;; ++end) {
      end = source_.find("{%", end);
      if (end == std::string::npos) Fail(tag, "the raw block is not closed");
      size_t i = end + 2;
      char sign = i < source_.size() ? source_[i] : '\0';
      if (sign == '-' || sign == '+') {
        ++i;
      } else {
        sign = '\0';
      }
      i = SkipSpace(i);
      if (!StartsWith(i, "endraw")) continue;
      i = SkipSpace(i + 6);
      const char close_sign = i < source_.size() ? source_[i] : '\0';
      if (close_sign == '-' || close_sign == '+') ++i;
      if (!StartsWith(i, "%}")) continue;
      EmitText(body, TrimBeforeTag(body, end, sign, false));
      MoveTo(TrimAfterTag(i + 2, close_sign));
      return;
    }
  }

  // The inside of {{ }} or {% %}, including the closing bracket.
  void LexTag(size_t tag, TokenKind end_kind) {
    std::vector<char> open;  // expected closing brackets, so that }} may close a dict
    while (true) {
      at_ = SkipSpace(at_);
      if (at_ >= source_.size()) Fail(tag, "the tag is not closed");
      if (open.empty() && LexTagEnd(end_kind)) return;
      const char c = Peek();
      if (IsNameStart(c)) {
        LexName();
      } else if (IsDecimal(c)) {
        LexNumber();
      } else if (c == '\'' || c == '"') {
        LexString();
      } else {
        LexOperator(open);
      }
    }
  }

  bool LexTagEnd(TokenKind end_kind) {
    const bool block = end_kind == TokenKind::kBlockEnd;
    const std::string_view bracket = block ? "%}" : "}}";
    const char sign = Peek() == '-' || (block && Peek() == '+') ? Peek() : '\0';
    const size_t close = at_ + (sign == '\0' ? 0 : 1);
    if (!StartsWith(close, bracket)) return false;
    Emit(end_kind, std::string(bracket), close);
    const size_t behind = close + 2;
    MoveTo(block ? TrimAfterTag(behind, sign) : sign == '-' ? SkipSpace(behind) : behind);
    return true;
  }

  void LexName() {
    const size_t begin = at_;
    while (IsNamePart(Peek())) ++at_;
    Emit(TokenKind::kName, source_.substr(begin, at_ - begin), begin);
  }

  // Digits with single underscores between them; returns them without underscores.
  template <class IsDigitChar>
  std::string LexDigits(IsDigitChar is_digit) {
    std::string digits;
    while (is_digit(Peek()) || (Peek() == '_' && !digits.empty() && is_digit(Peek(1)))) {
      if (Peek() != '_') digits.push_back(Peek());
      ++at_;
    }
    return digits;
  }

  void LexNumber() {
    const size_t begin = at_;
    const bool behind_dot = begin > 0 && source_[begin - 1] == '.';
    if (Peek() == '0' && (Peek(1) == 'x' || Peek(1) == 'X' || Peek(1) == 'o' || Peek(1) == 'O' ||
                          Peek(1) == 'b' || Peek(1) == 'B')) {
      return LexPrefixedInteger();
    }
    std::string number = LexDigits(IsDecimal);
    bool is_float = false;
    if (!behind_dot && Peek() == '.' && IsDecimal(Peek(1))) {
      is_float = true;
      ++at_;
      number += "." + LexDigits(IsDecimal);
    }
    const size_t sign = Peek(1) == '+' || Peek(1) == '-' ? 1 : 0;
    if (!behind_dot && (Peek() == 'e' || Peek() == 'E') && IsDecimal(Peek(1 + sign))) {
      is_float = true;
      number += source_.substr(at_, 1 + sign);
      at_ += 1 + sign;
      number += LexDigits(IsDecimal);
    }
    if (!is_float && number.size() > 1 && number[0] == '0' &&
        number.find_first_not_of('0') != std::string::npos) {
      Fail(begin, "a decimal number must not begin with 0");
    }
    Emit(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(number), begin);
  }

  // 0x1F, 0o17, 0b11; the token's text is decimal.
  void LexPrefixedInteger() {
    const size_t begin = at_;
    const int base = (Peek(1) | 0x20) == 'x' ? 16 : (Peek(1) | 0x20) == 'o' ? 8 : 2;
    at_ += 2;
    if (Peek() == '_') ++at_;
    const std::string digits = LexDigits([base](char c) {
      const int digit = HexDigit(c);
      return digit >= 0 && digit < base;
    });
    if (digits.empty()) Fail(begin, "a number has no digits");
    int64_t value = 0;
    for (const char c : digits) {
      if (__builtin_mul_overflow(value, static_cast<int64_t>(base), &value) ||
          __builtin_add_overflow(value, static_cast<int64_t>(HexDigit(c)), &value)) {
        Fail(begin, "the integer does not fit into 64 bits");
      }
    }
    Emit(TokenKind::kInteger, std::to_string(value), begin);
  }

  void LexString() {
    const size_t begin = at_;
    const char quote = Peek();
    ++at_;
    std::string value;
    while (Peek() != quote) {
      if (at_ >= source_.size()) Fail(begin, "the string is not closed");
      if (Peek() == '\\') {
        LexEscape(value);
      } else {
        value.push_back(Peek());
        ++at_;
      }
    }
    ++at_;
    Emit(TokenKind::kString, std::move(value), begin);
  }

  // Python's escapes in string literals; unknown ones stay unchanged.
  void LexEscape(std::string& value) {
    const size_t begin = at_;
    if (at_ + 1 >= source_.size()) Fail(begin, "the string is not closed");
    const char c = Peek(1);
    at_ += 2;
    static constexpr std::string_view kLetters = "abfnrtv\\'\"";
    static constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    const size_t letter = kLetters.find(c);
    if (letter != std::string_view::npos) {
      value.push_back(kValues[letter]);
    } else if (c == '\n') {
      // A line continuation.
    } else if (c == 'x' || c == 'u' || c == 'U') {
      AppendCodePoint(value, LexHex(c == 'x' ? 2 : c == 'u' ? 4 : 8, begin), begin);
    } else if (c >= '0' && c <= '7') {
      char32_t code = static_cast<char32_t>(c - '0');
      for (int i = 0; i < 2 && Peek() >= '0' && Peek() <= '7'; ++i, ++at_) {
        code = code * 8 + static_cast<char32_t>(Peek() - '0');
      }
      AppendCodePoint(value, code, begin);
    } else if (c == 'N') {
      Fail(begin, "\\N escapes are not supported");
    } else {
      value.push_back('\\');
      value.push_back(c);
    }
  }

  char32_t LexHex(int digits, size_t begin) {
    char32_t code = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const int digit = HexDigit(Peek());
      if (digit < 0) Fail(begin, "the escape needs " + std::to_string(digits) + " hex digits");
      code = code * 16 + static_cast<char32_t>(digit);
    }
    return code;
  }

  void AppendCodePoint(std::string& value, char32_t code, size_t begin) {
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      Fail(begin, "the escape is not a Unicode character");
    }
    AppendUtf8(code, value);
  }

  void LexOperator(std::vector<char>& open) {
    static constexpr std::array<std::string_view, 6> kDouble = {"==", "!=", "<=", ">=", "//", "**"};
    static constexpr std::string_view kSingle = "+-/*%~[](){}<>=.:|,;";
    for (const std::string_view op : kDouble) {
      if (StartsWith(at_, op)) {
        Emit(TokenKind::kOperator, std::string(op), at_);
        at_ += 2;
        return;
      }
    }
    const char c = Peek();
    if (kSingle.find(c) == std::string_view::npos || c == '\0') {
      Fail(at_, "unexpected character");
    }
    if (c == '(' || c == '[' || c == '{') {
      open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) Fail(at_, std::string("unexpected '") + c + "'");
      open.pop_back();
    }
    Emit(TokenKind::kOperator, std::string(1, c), at_);
    ++at_;
  }

  const std::string source_;
  std::vector<size_t> line_starts_ = {0};
  std::vector<Token> tokens_;
  size_t at_ = 0;
  bool line_starting_ = true;  // only line starts precede at_
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) {
  return Lexer(NormalizeNewlines(source)).Run();
}

}  // namespace tandem::engine
