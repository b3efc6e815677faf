#include "engine/chat/answers/json_scanner.h"

#include <string_view>

namespace tandem::engine {
namespace {

constexpr int kMaxDepth = 64;

bool IsSpace(char byte) { return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r'; }
bool IsDigitByte(char byte) { return byte >= '0' && byte <= '9'; }
bool IsHexDigit(char byte) {
  return IsDigitByte(byte) || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
}

}  // namespace

JsonScanner::Status JsonScanner::Feed(char byte) {
  state_ = Next(byte);
  if (state_ == State::kBad) return Status::kBad;
  return state_ == State::kDone ? Status::kDone : Status::kMore;
}

JsonScanner::State JsonScanner::Next(char byte) {
  switch (state_) {
    case State::kValue:
      return IsSpace(byte) ? state_ : BeginValue(byte);
    case State::kValueOrEnd:
      if (IsSpace(byte)) return state_;
      return byte == ']' ? Close() : BeginValue(byte);
    case State::kKey:
    case State::kKeyOrEnd:
      if (IsSpace(byte)) return state_;
      if (byte == '}' && state_ == State::kKeyOrEnd) return Close();
      is_key_ = true;
      return byte == '"' ? State::kString : State::kBad;
    case State::kColon:
      if (IsSpace(byte)) return state_;
      return byte == ':' ? State::kValue : State::kBad;
    case State::kCommaOrEnd:
      return CommaOrEnd(byte);
    case State::kString:
      if (byte == '\\') return State::kEscape;
      if (byte == '"') return is_key_ ? State::kColon : AfterValue();
      return static_cast<unsigned char>(byte) < 0x20 ? State::kBad : state_;
    case State::kEscape:
      if (byte == 'u') {
        hex_left_ = 4;
        return State::kHex;
      }
      return std::string_view("\"\\/bfnrt").find(byte) != std::string_view::npos ? State::kString
                                                                                 : State::kBad;
    case State::kHex:
      if (!IsHexDigit(byte)) return State::kBad;
      return --hex_left_ == 0 ? State::kString : state_;
    case State::kLiteral:
      if (byte != *literal_) return State::kBad;
      ++literal_;
      return *literal_ == '\0' ? AfterValue() : state_;
    case State::kDone:
      return IsSpace(byte) ? state_ : State::kBad;
    case State::kBad:
      return state_;
    default:
      return InNumber(byte);
  }
}

JsonScanner::State JsonScanner::BeginValue(char byte) {
  is_key_ = false;
  switch (byte) {
    case '{':
      return Open(true);
    case '[':
      return Open(false);
    case '"':
      return State::kString;
    case 't':
      literal_ = "rue";
      return State::kLiteral;
    case 'f':
      literal_ = "alse";
      return State::kLiteral;
    case 'n':
      literal_ = "ull";
      return State::kLiteral;
    case '-':
      return State::kMinus;
    case '0':
      return State::kZero;
    default:
      return IsDigitByte(byte) ? State::kInteger : State::kBad;
  }
}

JsonScanner::State JsonScanner::InNumber(char byte) {
  const bool is_exponent = byte == 'e' || byte == 'E';
  switch (state_) {
    case State::kMinus:
      if (byte == '0') return State::kZero;
      return IsDigitByte(byte) ? State::kInteger : State::kBad;
    case State::kZero:
    case State::kInteger:
      if (state_ == State::kInteger && IsDigitByte(byte)) return state_;
      if (byte == '.') return State::kPoint;
      return is_exponent ? State::kExponent : AfterNumber(byte);
    case State::kPoint:
      return IsDigitByte(byte) ? State::kFraction : State::kBad;
    case State::kFraction:
      if (IsDigitByte(byte)) return state_;
      return is_exponent ? State::kExponent : AfterNumber(byte);
    case State::kExponent:
      if (byte == '+' || byte == '-') return State::kExponentSign;
      return IsDigitByte(byte) ? State::kExponentDigits : State::kBad;
    case State::kExponentSign:
      return IsDigitByte(byte) ? State::kExponentDigits : State::kBad;
    default:  // kExponentDigits
      return IsDigitByte(byte) ? state_ : AfterNumber(byte);
  }
}

JsonScanner::State JsonScanner::AfterNumber(char byte) {
  state_ = AfterValue();
  return Next(byte);
}

JsonScanner::State JsonScanner::AfterValue() const {
  return depth_ == 0 ? State::kDone : State::kCommaOrEnd;
}

JsonScanner::State JsonScanner::CommaOrEnd(char byte) {
  if (IsSpace(byte)) return state_;
  if (byte == ',') return is_object() ? State::kKey : State::kValue;
  return byte == (is_object() ? '}' : ']') ? Close() : State::kBad;
}

JsonScanner::State JsonScanner::Open(bool is_object) {
  if (depth_ == kMaxDepth) return State::kBad;
  const uint64_t bit = uint64_t{1} << depth_;
  objects_ = is_object ? objects_ | bit : objects_ & ~bit;
  ++depth_;
  return is_object ? State::kKeyOrEnd : State::kValueOrEnd;
}

JsonScanner::State JsonScanner::Close() {
  --depth_;
  return AfterValue();
}

}  // namespace tandem::engine
