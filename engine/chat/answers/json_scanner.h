#pragma once

#include <cstdint>

namespace tandem::engine {

// Checks one JSON value byte by byte (RFC 8259, at most 64 levels) without storing it. Bytes above
// 127 are accepted in strings; the caller ensures UTF-8. Only the byte behind a number ends it.
// All other values (objects, lists, strings, literals) end with their own last byte.
class JsonScanner {
 public:
  enum class Status {
    kMore,  // a prefix of a value
    kDone,  // a whole value; only white space may follow
    kBad,   // no value begins like this; final
  };
  Status Feed(char byte);

  // Open objects and lists.
  int depth() const { return depth_; }
  // Between a colon and the first byte of the value, or before any value.
  bool expects_value() const { return state_ == State::kValue; }
  bool expects_colon() const { return state_ == State::kColon; }
  // After a value within an object or a list.
  bool expects_comma() const { return state_ == State::kCommaOrEnd; }
  // Within the quotes of a key.
  bool is_in_key() const { return is_key_ && (state_ == State::kString || is_escaped()); }

 private:
  enum class State : uint8_t {
    kValue,       // a value must follow
    kValueOrEnd,  // after '['
    kKey,         // after ',' in an object
    kKeyOrEnd,    // after '{'
    kColon,
    kCommaOrEnd,
    kString,
    kEscape,  // after '\'
    kHex,     // hex digits of \u
    kMinus,   // numbers, by the last byte
    kZero,
    kInteger,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
    kLiteral,  // within true, false or null
    kDone,
    kBad,
  };

  bool is_escaped() const { return state_ == State::kEscape || state_ == State::kHex; }
  bool is_object() const { return (objects_ >> (depth_ - 1) & 1) != 0; }
  State Next(char byte);
  State BeginValue(char byte);
  State InNumber(char byte);
  State AfterNumber(char byte);
  State AfterValue() const;
  State CommaOrEnd(char byte);
  State Open(bool is_object);
  State Close();

  State state_ = State::kValue;
  int depth_ = 0;
  uint64_t objects_ = 0;  // bit i: level i + 1 is an object
  bool is_key_ = false;
  int hex_left_ = 0;
  const char* literal_ = "";  // the bytes that must follow
};

}  // namespace tandem::engine
