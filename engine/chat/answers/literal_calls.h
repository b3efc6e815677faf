#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// A call whose arguments have become JSON.
struct WrittenCall {
  std::string name;
  std::string arguments;  // a JSON object
};

// How the values of a call are spelled. JSON's spelling is read too.
struct LiteralSyntax {
  bool is_python = false;       // True, None, 'text', {'key': 1}; else true, null, {key: 1}
  std::string_view quote = {};  // around texts; empty: ' and "
};

// Finds the end of a call or a list of calls that arrives in pieces.
class LiteralEnd {
 public:
  explicit LiteralEnd(LiteralSyntax syntax) : syntax_(syntax) {}
  // `text` is everything so far; only new bytes are read. Returns the length of the text up to the
  // bracket that closes the first one, or nullopt while it is open. Text before the first bracket
  // counts.
  std::optional<size_t> Find(std::string_view text);

 private:
  static constexpr char kMarkedText = 1;

  const LiteralSyntax syntax_;
  size_t at_ = 0;
  int depth_ = 0;
  char quote_ = 0;  // the open quotation mark; kMarkedText: the quote of the syntax
};

// `[f(a=1, b='x'), g()]`, white space around it allowed; nullopt if it is anything else.
std::optional<std::vector<WrittenCall>> ReadPythonicCalls(std::string_view text);
// `call:f{a:1,b:<quote>x<quote>}`; nullopt if it is anything else.
std::optional<WrittenCall> ReadKeyedCall(std::string_view text, std::string_view quote);

// The text as a JSON string with its quotes.
std::string ToJsonString(std::string_view text);
// Whether the text is one JSON value, white space around it allowed.
bool IsJsonValue(std::string_view text);

}  // namespace tandem::engine
