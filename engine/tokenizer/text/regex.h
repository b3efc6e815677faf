#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::engine {

// A pre-tokenizer pattern written for Oniguruma and run by PCRE2. Immutable; any thread may search
// with it.
class Pattern {
 public:
  // Throws kUnsupported naming `where`, for syntax that PCRE2 refuses, or that differs between the
  // engines without a translation.
  static Pattern Compile(std::string_view pattern, const std::string& where);

  struct Match {
    size_t begin;
    size_t end;
  };
  // Finds the leftmost match that begins at or after `from`. Look-behind sees the text before
  // `from`. REQUIRES: text is valid UTF-8. Throws kInvalidArgument when the pattern exceeds the
  // match limit, which grows with the text.
  std::optional<Match> Find(std::string_view text, size_t from) const;
  bool may_match_nothing() const;  // the empty text

 private:
  struct Compiled;
  explicit Pattern(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}

  std::shared_ptr<const Compiled> compiled_;
};

// Translates a pattern to PCRE2: \s becomes exactly White_Space, \w exactly Unicode's word
// characters. Throws kUnsupported like Compile.
std::string TranslatePattern(std::string_view pattern, const std::string& where);

}  // namespace tandem::engine
