#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/jinja/lexer.h"

namespace tandem::engine {

// The parsers' position in a template: looks ahead, takes tokens, reports faults at them and bounds
// the depth of the syntax.
class TokenStream {
 public:
  // REQUIRES: the last token is kEnd.
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Now(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  const Token& Take() { return tokens_[at_++]; }
  void Advance(size_t count = 1) { at_ += count; }
  bool IsOp(std::string_view op, size_t ahead = 0) const {
    return Now(ahead).Is(TokenKind::kOperator, op);
  }
  bool IsName(std::string_view name, size_t ahead = 0) const {
    return Now(ahead).Is(TokenKind::kName, name);
  }
  bool SkipOp(std::string_view op) {
    if (!IsOp(op)) return false;
    ++at_;
    return true;
  }
  bool SkipName(std::string_view name) {
    if (!IsName(name)) return false;
    ++at_;
    return true;
  }
  void ExpectOp(std::string_view op) {
    if (!SkipOp(op)) Fail("expected '" + std::string(op) + "', found " + Describe(Now()));
  }
  void ExpectName(std::string_view name) {
    if (!SkipName(name)) Fail("expected '" + std::string(name) + "', found " + Describe(Now()));
  }
  std::string TakeName(const char* what) {
    if (Now().kind != TokenKind::kName) {
      Fail(std::string("expected ") + what + ", found " + Describe(Now()));
    }
    return Take().text;
  }
  void ExpectBlockEnd() {
    if (Now().kind != TokenKind::kBlockEnd) {
      Fail("expected the end of the statement, found " + Describe(Now()));
    }
    ++at_;
  }

  static std::string Describe(const Token& token) {
    if (token.kind == TokenKind::kEnd) return "the end of the template";
    if (token.kind == TokenKind::kString) return "a string";
    return "'" + token.text + "'";
  }

  // Throws kInvalidArgument at the current token.
  [[noreturn]] void Fail(const std::string& what) const { FailAt(Now().at, what); }
  [[noreturn]] static void FailAt(SourcePosition at, const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, DescribeFault(at, what));
  }
  [[noreturn]] static void Unsupported(SourcePosition at, const std::string& what) {
    throw Error(ErrorCode::kUnsupported, DescribeFault(at, what));
  }

  // Held during the parsing of a construct that can contain itself.
  class Nesting {
   public:
    explicit Nesting(TokenStream& in) : in_(in) {
      if (in_.nesting_ >= kMaxSyntaxDepth) in_.Fail("the template nests too deeply");
      ++in_.nesting_;
    }
    ~Nesting() { --in_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    TokenStream& in_;
  };

 private:
  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace tandem::engine
