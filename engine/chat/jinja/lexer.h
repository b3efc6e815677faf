#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/jinja/runtime.h"

namespace tandem::engine {

enum class TokenKind {
  kText,  // between tags, white space already trimmed
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kInteger,
  kFloat,
  kString,  // text is the value: escapes resolved
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  SourcePosition at;

  bool Is(TokenKind wanted, std::string_view wanted_text) const {
    return kind == wanted && text == wanted_text;
  }
};

// Cuts a template into tokens. Line breaks become \n, a final one is dropped; comments vanish, raw
// blocks become text. trim_blocks and lstrip_blocks are on; `-` and `+` in tags work as in Jinja.
// The last token is kEnd. Throws kInvalidArgument with line and column.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace tandem::engine
