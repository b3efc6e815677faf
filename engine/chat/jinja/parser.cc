#include "engine/chat/jinja/parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "engine/chat/jinja/expression_parser.h"
#include "engine/chat/jinja/lexer.h"
#include "engine/chat/jinja/token_stream.h"

namespace tandem::engine {
namespace {

// Names that a template cannot assign to or call like variables.
constexpr std::array<std::string_view, 6> kConstants = {"true",  "True", "false",
                                                        "False", "none", "None"};

// Jinja statements that need a file system or an environment, which the sandbox lacks.
constexpr std::array<std::string_view, 9> kUnsupportedStatements = {
    "include", "import", "from", "extends", "block", "autoescape", "do", "trans", "debug"};

template <class Container>
bool IsOneOf(std::string_view name, const Container& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

  Block ParseAll() {
    Block body = ParseBlock({});
    if (in_.Now().kind != TokenKind::kEnd) in_.Fail("unexpected '" + in_.Now(1).text + "'");
    return body;
  }

 private:
  // Parses statements up to a tag with one of `ends`, which is not consumed: in_.Now() is its {%.
  Block ParseBlock(std::initializer_list<std::string_view> ends) {
    const TokenStream::Nesting nesting(in_);
    Block block;
    while (in_.Now().kind != TokenKind::kEnd) {
      const SourcePosition at = in_.Now().at;
      if (in_.Now().kind == TokenKind::kText) {
        block.push_back({at, TextStmt{Text::Make(in_.Now().text, false)}});
        in_.Advance();
      } else if (in_.Now().kind == TokenKind::kVariableBegin) {
        in_.Advance();
        ExprPtr value = ParseTuple(in_);
        if (in_.Now().kind != TokenKind::kVariableEnd) {
          in_.Fail("expected '}}', found " + TokenStream::Describe(in_.Now()));
        }
        in_.Advance();
        block.push_back({at, OutputStmt{std::move(value)}});
      } else {
        if (in_.Now(1).kind == TokenKind::kName && IsOneOf(in_.Now(1).text, ends)) return block;
        if (in_.Now(1).kind == TokenKind::kName && in_.Now(1).text.starts_with("end")) return block;
        in_.Advance();
        block.push_back(ParseStatement(at));
      }
    }
    return block;
  }

  // The body of a statement and its end tag.
  Block ParseBody(SourcePosition at, const char* end) {
    Block body = ParseBlock({});
    ExpectEnd(at, end);
    return body;
  }

  void ExpectEnd(SourcePosition at, const char* end) {
    if (in_.Now().kind == TokenKind::kEnd)
      TokenStream::FailAt(at, std::string("misses its '") + end + "'");
    in_.Advance();
    in_.ExpectName(end);
    in_.ExpectBlockEnd();
  }

  Stmt ParseStatement(SourcePosition at) {
    const SourcePosition name_at = in_.Now().at;
    const std::string name = in_.TakeName("a statement's name");
    if (name == "if") return {at, ParseIf(at)};
    if (name == "for") return {at, ParseFor(at)};
    if (name == "set") return ParseSet(at);
    if (name == "macro") return {at, ParseMacro(at)};
    if (name == "call") return {at, ParseCallBlock(at)};
    if (name == "filter") return {at, ParseFilterBlock(at)};
    if (name == "with") return {at, ParseWith(at)};
    if (name == "generation") {
      in_.ExpectBlockEnd();
      return {at, GenerationStmt{ParseBody(at, "endgeneration")}};
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) TokenStream::FailAt(name_at, "'" + name + "' outside of a loop");
      in_.ExpectBlockEnd();
      if (name == "break") return {at, BreakStmt{}};
      return {at, ContinueStmt{}};
    }
    if (IsOneOf(name, kUnsupportedStatements)) {
      TokenStream::Unsupported(name_at,
                               "the statement '" + name + "' is not supported in chat templates");
    }
    TokenStream::FailAt(name_at, "unknown statement '" + name + "'");
  }

  IfStmt ParseIf(SourcePosition at) {
    IfStmt statement;
    while (true) {
      IfStmt::Branch branch;
      branch.condition = ParseTuple(in_, Conditional::kNo);
      in_.ExpectBlockEnd();
      branch.body = ParseBlock({"elif", "else"});
      statement.branches.push_back(std::move(branch));
      if (in_.Now().kind == TokenKind::kEnd || !in_.IsName("elif", 1)) break;
      in_.Advance(2);
    }
    if (in_.Now().kind != TokenKind::kEnd && in_.IsName("else", 1)) {
      in_.Advance(2);
      in_.ExpectBlockEnd();
      statement.branches.push_back({nullptr, ParseBlock({})});
    }
    ExpectEnd(at, "endif");
    return statement;
  }

  ForStmt ParseFor(SourcePosition at) {
    ForStmt statement;
    statement.target = ParseTarget();
    in_.ExpectName("in");
    statement.iterable = ParseTuple(in_, Conditional::kNo);
    if (in_.SkipName("if")) statement.filter = ParseExpression(in_);
    if (in_.IsName("recursive"))
      TokenStream::Unsupported(in_.Now().at, "recursive loops are not supported");
    in_.ExpectBlockEnd();
    ++loops_;
    statement.body = ParseBlock({"else"});
    --loops_;
    if (in_.Now().kind != TokenKind::kEnd && in_.IsName("else", 1)) {
      in_.Advance(2);
      in_.ExpectBlockEnd();
      statement.otherwise = ParseBlock({});
    }
    ExpectEnd(at, "endfor");
    return statement;
  }

  Stmt ParseSet(SourcePosition at) {
    Target target = ParseTarget();
    if (in_.SkipOp("=")) {
      SetStmt statement{std::move(target), ParseTuple(in_)};
      in_.ExpectBlockEnd();
      return {at, std::move(statement)};
    }
    if (!target.elements.empty())
      in_.Fail("expected '=', found " + TokenStream::Describe(in_.Now()));
    SetBlockStmt statement;
    statement.target = std::move(target);
    if (in_.IsOp("|")) statement.filters = ParseFilterChain(in_);
    in_.ExpectBlockEnd();
    statement.body = ParseBody(at, "endset");
    return {at, std::move(statement)};
  }

  // The break and continue of a loop do not apply inside a body that is called or captured.
  Block ParseDetachedBody(SourcePosition at, const char* end) {
    const int loops = std::exchange(loops_, 0);
    Block body = ParseBody(at, end);
    loops_ = loops;
    return body;
  }

  MacroStmt ParseMacro(SourcePosition at) {
    MacroStmt statement;
    statement.name = ParseAssignableName();
    statement.parameters = ParseParameters();
    in_.ExpectBlockEnd();
    statement.body = ParseDetachedBody(at, "endmacro");
    return statement;
  }

  CallBlockStmt ParseCallBlock(SourcePosition at) {
    CallBlockStmt statement;
    if (in_.IsOp("(")) statement.parameters = ParseParameters();
    statement.call = ParseExpression(in_);
    if (!std::holds_alternative<CallExpr>(statement.call->node)) {
      TokenStream::FailAt(statement.call->at, "'call' needs a call");
    }
    in_.ExpectBlockEnd();
    statement.body = ParseDetachedBody(at, "endcall");
    return statement;
  }

  FilterBlockStmt ParseFilterBlock(SourcePosition at) {
    FilterBlockStmt statement;
    statement.filters.push_back(ParseFilter(in_));
    if (in_.IsOp("|")) {
      for (ExprPtr& filter : ParseFilterChain(in_)) statement.filters.push_back(std::move(filter));
    }
    in_.ExpectBlockEnd();
    statement.body = ParseBody(at, "endfilter");
    return statement;
  }

  WithStmt ParseWith(SourcePosition at) {
    WithStmt statement;
    while (in_.Now().kind != TokenKind::kBlockEnd) {
      if (!statement.assignments.empty()) in_.ExpectOp(",");
      Target target;
      target.name = ParseAssignableName();
      in_.ExpectOp("=");
      statement.assignments.emplace_back(std::move(target), ParseExpression(in_));
    }
    in_.ExpectBlockEnd();
    statement.body = ParseBody(at, "endwith");
    return statement;
  }

  std::vector<Parameter> ParseParameters() {
    std::vector<Parameter> parameters;
    in_.ExpectOp("(");
    while (!in_.SkipOp(")")) {
      if (!parameters.empty()) {
        in_.ExpectOp(",");
        if (in_.SkipOp(")")) break;
      }
      Parameter parameter;
      const SourcePosition at = in_.Now().at;
      parameter.name = ParseAssignableName();
      if (in_.SkipOp("=")) {
        parameter.fallback = ParseExpression(in_);
      } else if (!parameters.empty() && parameters.back().fallback != nullptr) {
        TokenStream::FailAt(at, "a parameter without default follows one with a default");
      }
      parameters.push_back(std::move(parameter));
    }
    return parameters;
  }

  std::string ParseAssignableName() {
    if (in_.Now().kind == TokenKind::kName && IsOneOf(in_.Now().text, kConstants)) {
      in_.Fail("cannot assign to '" + in_.Now().text + "'");
    }
    return in_.TakeName("a name");
  }

  // a | a.b | a, b | (a, (b, c))
  Target ParseTarget() {
    const TokenStream::Nesting nesting(in_);
    Target first = ParseOneTarget();
    if (!in_.IsOp(",")) return first;
    Target target;
    target.elements.push_back(std::move(first));
    while (in_.SkipOp(",")) {
      if (in_.IsName("in") || in_.IsOp("=") || in_.IsOp(")")) break;
      target.elements.push_back(ParseOneTarget());
    }
    return target;
  }

  Target ParseOneTarget() {
    if (in_.SkipOp("(")) {
      Target inner = ParseTarget();
      in_.ExpectOp(")");
      return inner;
    }
    Target target;
    target.name = ParseAssignableName();
    if (in_.SkipOp(".")) target.attribute = in_.TakeName("an attribute's name");
    return target;
  }

  TokenStream in_;
  int loops_ = 0;  // open loops that break and continue can refer to
};

}  // namespace

Block ParseTemplate(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    throw Error(ErrorCode::kInvalidArgument,
                "the chat template has " + std::to_string(source.size()) + " bytes, the limit is " +
                    std::to_string(kMaxTemplateBytes));
  }
  return Parser(Tokenize(source)).ParseAll();
}

}  // namespace tandem::engine
