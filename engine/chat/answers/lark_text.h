#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/ids.h"

namespace tandem::engine {

// The text of a Lark grammar, built rule by rule. Equal rules are written once.
class LarkText {
 public:
  // Returns the name of the rule.
  std::string Rule(const std::string& body);
  // A rule that ends at its first match.
  std::string Lazy(const std::string& terminal);
  // A terminal, which may use & and ~. Returns its name.
  std::string Terminal(const std::string& body);
  // Counts the bytes of a part that took work, even if its rule exists. Throws kInvalidArgument
  // (tools, unsupported_schema) beyond 8 MiB.
  void Charge(size_t n_bytes);
  // Writes the rule `start`. Returns the whole grammar.
  std::string Finish(const std::string& start) const;

 private:
  std::string Named(const std::string& head, const std::string& attribute, const std::string& body);

  std::map<std::string, std::string> names_;  // by attribute and body
  std::string text_;
  size_t n_charged_ = 0;
};

// A sequence of Lark parts. Adjacent regexes become one terminal, because a lexer reads the longest
// terminal and would not stop between two of them.
class LarkSequence {
 public:
  LarkSequence& Regex(std::string_view regex);
  LarkSequence& Text(std::string_view text);
  LarkSequence& Token(TokenId id);
  // A rule, a group or any other part.
  LarkSequence& Part(std::string_view part);
  std::string str() const;

 private:
  std::string done_;
  std::string regex_;
};

// A regex of exactly this text.
std::string RegexOf(std::string_view text);
// A terminal of all texts that are not empty, do not hold one of `marks` and do not
// begin as one of `beginnings`, which are regexes.
std::string TextWithout(std::span<const std::string> marks,
                        std::span<const std::string> beginnings = {});

// Any text.
inline constexpr std::string_view kAnyText = "(.|\\n)*";
// The white space that readers skip.
inline constexpr std::string_view kLayout = "[ \\t\\r\\n]*";

}  // namespace tandem::engine
