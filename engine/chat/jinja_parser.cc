#include "engine/chat/jinja_parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "engine/chat/jinja_lexer.h"

namespace tandem::engine {
namespace {

// Names that cannot be assigned to or called like variables.
constexpr std::array<std::string_view, 6> kConstants = {"true",  "True", "false",
                                                        "False", "none", "None"};

// Statements of Jinja which need a file system or an environment that the sandbox does not have.
constexpr std::array<std::string_view, 9> kUnsupportedStatements = {
    "include", "import", "from", "extends", "block", "autoescape", "do", "trans", "debug"};

template <class Container>
bool IsOneOf(std::string_view name, const Container& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Block ParseAll() {
    Block body = ParseBlock({});
    if (Now().kind != TokenKind::kEnd) Fail("unexpected '" + NowName(1) + "'");
    return body;
  }

 private:
  // ---- tokens

  const Token& Now(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  std::string NowName(size_t ahead) const { return Now(ahead).text; }
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
    return tokens_[at_++].text;
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

  // ---- faults

  [[noreturn]] void Fail(const std::string& what) const { FailAt(Now().at, what); }
  [[noreturn]] static void FailAt(SourcePosition at, const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, DescribeFault(at, what));
  }
  [[noreturn]] static void Unsupported(SourcePosition at, const std::string& what) {
    throw Error(ErrorCode::kUnsupported, DescribeFault(at, what));
  }

  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (parser_.nesting_ >= kMaxSyntaxDepth) parser_.Fail("the template nests too deeply");
      ++parser_.nesting_;
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  // ---- trees

  static void Deepen(int& depth, const ExprPtr& child) {
    if (child != nullptr) depth = std::max(depth, child->depth);
  }
  static void Deepen(int& depth, const std::vector<ExprPtr>& children) {
    for (const ExprPtr& child : children) Deepen(depth, child);
  }
  static void Deepen(int& depth, const CallArguments& arguments) {
    Deepen(depth, arguments.positional);
    for (const auto& [name, value] : arguments.named) Deepen(depth, value);
  }
  template <class... Children>
  static int DeepestOf(const Children&... children) {
    int depth = 0;
    (Deepen(depth, children), ...);
    return depth;
  }

  static int DepthBelow(const LiteralExpr&) { return 0; }
  static int DepthBelow(const NameExpr&) { return 0; }
  static int DepthBelow(const AttributeExpr& e) { return DeepestOf(e.object); }
  static int DepthBelow(const IndexExpr& e) { return DeepestOf(e.object, e.index); }
  static int DepthBelow(const SliceExpr& e) { return DeepestOf(e.object, e.start, e.stop, e.step); }
  static int DepthBelow(const CallExpr& e) { return DeepestOf(e.callee, e.arguments); }
  static int DepthBelow(const FilterExpr& e) { return DeepestOf(e.input, e.arguments); }
  static int DepthBelow(const TestExpr& e) { return DeepestOf(e.input, e.arguments); }
  static int DepthBelow(const UnaryExpr& e) { return DeepestOf(e.operand); }
  static int DepthBelow(const BinaryExpr& e) { return DeepestOf(e.left, e.right); }
  static int DepthBelow(const LogicExpr& e) { return DeepestOf(e.left, e.right); }
  static int DepthBelow(const ConcatExpr& e) { return DeepestOf(e.parts); }
  static int DepthBelow(const ListExpr& e) { return DeepestOf(e.items); }
  static int DepthBelow(const ConditionalExpr& e) {
    return DeepestOf(e.condition, e.value, e.otherwise);
  }
  static int DepthBelow(const CompareExpr& e) {
    int depth = DeepestOf(e.first);
    for (const auto& [op, operand] : e.rest) Deepen(depth, operand);
    return depth;
  }
  static int DepthBelow(const DictExpr& e) {
    int depth = 0;
    for (const auto& [key, value] : e.entries) depth = std::max(depth, DeepestOf(key, value));
    return depth;
  }

  // Bounds the depth also of trees that grow without recursion here (a + b + c + ...), because
  // the evaluator and the destructor do recurse.
  template <class Node>
  static ExprPtr Make(SourcePosition at, Node node) {
    auto expr = std::make_unique<Expr>();
    expr->at = at;
    expr->depth = DepthBelow(node) + 1;
    expr->node = std::move(node);
    if (expr->depth > kMaxExpressionDepth) FailAt(at, "the expression nests too deeply");
    return expr;
  }

  // ---- statements

  // Statements up to a tag with one of `ends`, which stays: Now() is its {%.
  Block ParseBlock(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    Block block;
    while (Now().kind != TokenKind::kEnd) {
      const SourcePosition at = Now().at;
      if (Now().kind == TokenKind::kText) {
        block.push_back({at, TextStmt{Text::Make(Now().text, false)}});
        ++at_;
      } else if (Now().kind == TokenKind::kVariableBegin) {
        ++at_;
        ExprPtr value = ParseTuple();
        if (Now().kind != TokenKind::kVariableEnd) {
          Fail("expected '}}', found " + Describe(Now()));
        }
        ++at_;
        block.push_back({at, OutputStmt{std::move(value)}});
      } else {
        if (Now(1).kind == TokenKind::kName && IsOneOf(Now(1).text, ends)) return block;
        if (Now(1).kind == TokenKind::kName && Now(1).text.starts_with("end")) return block;
        ++at_;
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
    if (Now().kind == TokenKind::kEnd) FailAt(at, std::string("misses its '") + end + "'");
    ++at_;
    ExpectName(end);
    ExpectBlockEnd();
  }

  Stmt ParseStatement(SourcePosition at) {
    const SourcePosition name_at = Now().at;
    const std::string name = TakeName("a statement's name");
    if (name == "if") return {at, ParseIf(at)};
    if (name == "for") return {at, ParseFor(at)};
    if (name == "set") return ParseSet(at);
    if (name == "macro") return {at, ParseMacro(at)};
    if (name == "call") return {at, ParseCallBlock(at)};
    if (name == "filter") return {at, ParseFilterBlock(at)};
    if (name == "with") return {at, ParseWith(at)};
    if (name == "generation") {
      ExpectBlockEnd();
      return {at, GenerationStmt{ParseBody(at, "endgeneration")}};
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) FailAt(name_at, "'" + name + "' outside of a loop");
      ExpectBlockEnd();
      if (name == "break") return {at, BreakStmt{}};
      return {at, ContinueStmt{}};
    }
    if (IsOneOf(name, kUnsupportedStatements)) {
      Unsupported(name_at, "the statement '" + name + "' is not supported in chat templates");
    }
    FailAt(name_at, "unknown statement '" + name + "'");
  }

  IfStmt ParseIf(SourcePosition at) {
    IfStmt statement;
    while (true) {
      IfStmt::Branch branch;
      branch.condition = ParseTuple(Conditional::kNo);
      ExpectBlockEnd();
      branch.body = ParseBlock({"elif", "else"});
      statement.branches.push_back(std::move(branch));
      if (Now().kind == TokenKind::kEnd || !IsName("elif", 1)) break;
      at_ += 2;
    }
    if (Now().kind != TokenKind::kEnd && IsName("else", 1)) {
      at_ += 2;
      ExpectBlockEnd();
      statement.branches.push_back({nullptr, ParseBlock({})});
    }
    ExpectEnd(at, "endif");
    return statement;
  }

  ForStmt ParseFor(SourcePosition at) {
    ForStmt statement;
    statement.target = ParseTarget();
    ExpectName("in");
    statement.iterable = ParseTuple(Conditional::kNo);
    if (SkipName("if")) statement.filter = ParseExpression();
    if (IsName("recursive")) Unsupported(Now().at, "recursive loops are not supported");
    ExpectBlockEnd();
    ++loops_;
    statement.body = ParseBlock({"else"});
    --loops_;
    if (Now().kind != TokenKind::kEnd && IsName("else", 1)) {
      at_ += 2;
      ExpectBlockEnd();
      statement.otherwise = ParseBlock({});
    }
    ExpectEnd(at, "endfor");
    return statement;
  }

  Stmt ParseSet(SourcePosition at) {
    Target target = ParseTarget();
    if (SkipOp("=")) {
      SetStmt statement{std::move(target), ParseTuple()};
      ExpectBlockEnd();
      return {at, std::move(statement)};
    }
    if (!target.elements.empty()) Fail("expected '=', found " + Describe(Now()));
    SetBlockStmt statement;
    statement.target = std::move(target);
    if (IsOp("|")) statement.filters = ParseFilterChain();
    ExpectBlockEnd();
    statement.body = ParseBody(at, "endset");
    return {at, std::move(statement)};
  }

  // The break and continue of a loop do not reach into a body that is called or captured.
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
    ExpectBlockEnd();
    statement.body = ParseDetachedBody(at, "endmacro");
    return statement;
  }

  CallBlockStmt ParseCallBlock(SourcePosition at) {
    CallBlockStmt statement;
    if (IsOp("(")) statement.parameters = ParseParameters();
    statement.call = ParseExpression();
    if (!std::holds_alternative<CallExpr>(statement.call->node)) {
      FailAt(statement.call->at, "'call' needs a call");
    }
    ExpectBlockEnd();
    statement.body = ParseDetachedBody(at, "endcall");
    return statement;
  }

  FilterBlockStmt ParseFilterBlock(SourcePosition at) {
    FilterBlockStmt statement;
    statement.filters.push_back(ParseFilter(nullptr));
    if (IsOp("|")) {
      for (ExprPtr& filter : ParseFilterChain()) statement.filters.push_back(std::move(filter));
    }
    ExpectBlockEnd();
    statement.body = ParseBody(at, "endfilter");
    return statement;
  }

  WithStmt ParseWith(SourcePosition at) {
    WithStmt statement;
    while (Now().kind != TokenKind::kBlockEnd) {
      if (!statement.assignments.empty()) ExpectOp(",");
      Target target;
      target.name = ParseAssignableName();
      ExpectOp("=");
      statement.assignments.emplace_back(std::move(target), ParseExpression());
    }
    ExpectBlockEnd();
    statement.body = ParseBody(at, "endwith");
    return statement;
  }

  std::vector<Parameter> ParseParameters() {
    std::vector<Parameter> parameters;
    ExpectOp("(");
    while (!SkipOp(")")) {
      if (!parameters.empty()) {
        ExpectOp(",");
        if (SkipOp(")")) break;
      }
      Parameter parameter;
      const SourcePosition at = Now().at;
      parameter.name = ParseAssignableName();
      if (SkipOp("=")) {
        parameter.fallback = ParseExpression();
      } else if (!parameters.empty() && parameters.back().fallback != nullptr) {
        FailAt(at, "a parameter without default follows one with a default");
      }
      parameters.push_back(std::move(parameter));
    }
    return parameters;
  }

  std::string ParseAssignableName() {
    if (Now().kind == TokenKind::kName && IsOneOf(Now().text, kConstants)) {
      Fail("cannot assign to '" + Now().text + "'");
    }
    return TakeName("a name");
  }

  // a | a.b | a, b | (a, (b, c))
  Target ParseTarget() {
    const Nesting nesting(*this);
    Target first = ParseOneTarget();
    if (!IsOp(",")) return first;
    Target target;
    target.elements.push_back(std::move(first));
    while (SkipOp(",")) {
      if (IsName("in") || IsOp("=") || IsOp(")")) break;
      target.elements.push_back(ParseOneTarget());
    }
    return target;
  }

  Target ParseOneTarget() {
    if (SkipOp("(")) {
      Target inner = ParseTarget();
      ExpectOp(")");
      return inner;
    }
    Target target;
    target.name = ParseAssignableName();
    if (SkipOp(".")) target.attribute = TakeName("an attribute's name");
    return target;
  }

  // ---- expressions, from the loosest to the tightest

  enum class Conditional { kYes, kNo };

  ExprPtr ParseExpression(Conditional conditional = Conditional::kYes) {
    const Nesting nesting(*this);
    return conditional == Conditional::kYes ? ParseConditional() : ParseOr();
  }

  bool AtTupleEnd() const {
    const Token& token = Now();
    return token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd ||
           token.kind == TokenKind::kEnd || IsOp(")");
  }

  // An expression, or several with commas: a tuple.
  ExprPtr ParseTuple(Conditional conditional = Conditional::kYes) {
    const SourcePosition at = Now().at;
    if (AtTupleEnd()) Fail("expected an expression, found " + Describe(Now()));
    ExprPtr first = ParseExpression(conditional);
    if (!IsOp(",")) return first;
    ListExpr tuple{{}, ListKind::kTuple};
    tuple.items.push_back(std::move(first));
    while (SkipOp(",")) {
      if (AtTupleEnd()) break;
      tuple.items.push_back(ParseExpression(conditional));
    }
    return Make(at, std::move(tuple));
  }

  ExprPtr ParseConditional() {
    const SourcePosition at = Now().at;
    ExprPtr value = ParseOr();
    while (SkipName("if")) {
      ConditionalExpr conditional;
      conditional.value = std::move(value);
      conditional.condition = ParseOr();
      if (SkipName("else")) conditional.otherwise = ParseExpression();
      value = Make(at, std::move(conditional));
    }
    return value;
  }

  ExprPtr ParseOr() {
    const SourcePosition at = Now().at;
    ExprPtr left = ParseAnd();
    while (SkipName("or")) left = Make(at, LogicExpr{LogicOp::kOr, std::move(left), ParseAnd()});
    return left;
  }

  ExprPtr ParseAnd() {
    const SourcePosition at = Now().at;
    ExprPtr left = ParseNot();
    while (SkipName("and")) left = Make(at, LogicExpr{LogicOp::kAnd, std::move(left), ParseNot()});
    return left;
  }

  ExprPtr ParseNot() {
    if (!IsName("not")) return ParseComparison();
    const Nesting nesting(*this);
    const SourcePosition at = Now().at;
    ++at_;
    return Make(at, UnaryExpr{UnaryOp::kNot, ParseNot()});
  }

  std::optional<CompareOp> TakeCompareOp() {
    static constexpr std::array<std::pair<std::string_view, CompareOp>, 6> kOps = {{
        {"==", CompareOp::kEqual},
        {"!=", CompareOp::kNotEqual},
        {"<", CompareOp::kLess},
        {"<=", CompareOp::kLessEqual},
        {">", CompareOp::kGreater},
        {">=", CompareOp::kGreaterEqual},
    }};
    for (const auto& [text, op] : kOps) {
      if (SkipOp(text)) return op;
    }
    if (SkipName("in")) return CompareOp::kIn;
    if (IsName("not") && IsName("in", 1)) {
      at_ += 2;
      return CompareOp::kNotIn;
    }
    return std::nullopt;
  }

  ExprPtr ParseComparison() {
    const SourcePosition at = Now().at;
    ExprPtr first = ParseSum();
    std::optional<CompareOp> op = TakeCompareOp();
    if (!op.has_value()) return first;
    CompareExpr comparison;
    comparison.first = std::move(first);
    for (; op.has_value(); op = TakeCompareOp()) comparison.rest.emplace_back(*op, ParseSum());
    return Make(at, std::move(comparison));
  }

  ExprPtr ParseSum() {
    ExprPtr left = ParseConcat();
    while (IsOp("+") || IsOp("-")) {
      const SourcePosition at = Now().at;
      const BinaryOp op = IsOp("+") ? BinaryOp::kAdd : BinaryOp::kSubtract;
      ++at_;
      left = Make(at, BinaryExpr{op, std::move(left), ParseConcat()});
    }
    return left;
  }

  ExprPtr ParseConcat() {
    const SourcePosition at = Now().at;
    ExprPtr first = ParseProduct();
    if (!IsOp("~")) return first;
    ConcatExpr concat;
    concat.parts.push_back(std::move(first));
    while (SkipOp("~")) concat.parts.push_back(ParseProduct());
    return Make(at, std::move(concat));
  }

  ExprPtr ParseProduct() {
    ExprPtr left = ParsePower();
    while (IsOp("*") || IsOp("/") || IsOp("//") || IsOp("%")) {
      const SourcePosition at = Now().at;
      const BinaryOp op = IsOp("*")    ? BinaryOp::kMultiply
                          : IsOp("/")  ? BinaryOp::kDivide
                          : IsOp("//") ? BinaryOp::kFloorDivide
                                       : BinaryOp::kModulo;
      ++at_;
      left = Make(at, BinaryExpr{op, std::move(left), ParsePower()});
    }
    return left;
  }

  // Left-associative and looser than unary minus, unlike Python's: that is Jinja's way.
  ExprPtr ParsePower() {
    ExprPtr left = ParseUnary(Filters::kYes);
    while (IsOp("**")) {
      const SourcePosition at = Now().at;
      ++at_;
      left = Make(at, BinaryExpr{BinaryOp::kPower, std::move(left), ParseUnary(Filters::kYes)});
    }
    return left;
  }

  enum class Filters { kYes, kNo };

  ExprPtr ParseUnary(Filters filters) {
    const Nesting nesting(*this);
    const SourcePosition at = Now().at;
    ExprPtr expr;
    if (SkipOp("-")) {
      expr = Make(at, UnaryExpr{UnaryOp::kMinus, ParseUnary(Filters::kNo)});
    } else if (SkipOp("+")) {
      expr = Make(at, UnaryExpr{UnaryOp::kPlus, ParseUnary(Filters::kNo)});
    } else {
      expr = ParsePrimary();
    }
    expr = ParsePostfix(std::move(expr));
    if (filters == Filters::kYes) expr = ParseFiltersAndTests(std::move(expr));
    return expr;
  }

  ExprPtr ParsePrimary() {
    const Token& token = Now();
    const SourcePosition at = token.at;
    switch (token.kind) {
      case TokenKind::kName:
        ++at_;
        if (token.text == "true" || token.text == "True") return Literal(at, Value::Bool(true));
        if (token.text == "false" || token.text == "False") return Literal(at, Value::Bool(false));
        if (token.text == "none" || token.text == "None") return Literal(at, Value());
        return Make(at, NameExpr{token.text});
      case TokenKind::kString: {
        std::string text;
        while (Now().kind == TokenKind::kString) text += tokens_[at_++].text;
        return Literal(at, Value::Literal(std::move(text)));
      }
      case TokenKind::kInteger:
        ++at_;
        return Literal(at, Value::Int(ParseInteger(token)));
      case TokenKind::kFloat:
        ++at_;
        return Literal(at, Value::Float(ParseFloat(token)));
      case TokenKind::kOperator:
        if (token.text == "(") return ParseParenthesized();
        if (token.text == "[") return ParseList();
        if (token.text == "{") return ParseDict();
        [[fallthrough]];
      default:
        Fail("expected an expression, found " + Describe(token));
    }
  }

  static ExprPtr Literal(SourcePosition at, Value value) {
    return Make(at, LiteralExpr{std::move(value)});
  }

  static int64_t ParseInteger(const Token& token) {
    int64_t value = 0;
    const char* end = token.text.data() + token.text.size();
    const auto result = std::from_chars(token.text.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end) {
      FailAt(token.at, "the integer does not fit into 64 bits");
    }
    return value;
  }

  static double ParseFloat(const Token& token) {
    double value = 0;
    const char* end = token.text.data() + token.text.size();
    const auto result = std::from_chars(token.text.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end) {
      FailAt(token.at, "the number is out of range");
    }
    return value;
  }

  ExprPtr ParseParenthesized() {
    const SourcePosition at = Now().at;
    ExpectOp("(");
    if (SkipOp(")")) return Make(at, ListExpr{{}, ListKind::kTuple});
    ExprPtr inner = ParseTuple();
    ExpectOp(")");
    return inner;
  }

  ExprPtr ParseList() {
    const SourcePosition at = Now().at;
    ExpectOp("[");
    ListExpr list{{}, ListKind::kList};
    while (!SkipOp("]")) {
      if (!list.items.empty()) {
        ExpectOp(",");
        if (SkipOp("]")) break;
      }
      list.items.push_back(ParseExpression());
    }
    return Make(at, std::move(list));
  }

  ExprPtr ParseDict() {
    const SourcePosition at = Now().at;
    ExpectOp("{");
    DictExpr dict;
    while (!SkipOp("}")) {
      if (!dict.entries.empty()) {
        ExpectOp(",");
        if (SkipOp("}")) break;
      }
      ExprPtr key = ParseExpression();
      ExpectOp(":");
      dict.entries.emplace_back(std::move(key), ParseExpression());
    }
    return Make(at, std::move(dict));
  }

  ExprPtr ParsePostfix(ExprPtr expr) {
    while (true) {
      const SourcePosition at = Now().at;
      if (SkipOp(".")) {
        if (Now().kind == TokenKind::kInteger) {
          ExprPtr index = Literal(at, Value::Int(ParseInteger(Now())));
          ++at_;
          expr = Make(at, IndexExpr{std::move(expr), std::move(index)});
        } else {
          expr = Make(at, AttributeExpr{std::move(expr), TakeName("a name behind '.'")});
        }
      } else if (IsOp("[")) {
        expr = ParseSubscript(std::move(expr));
      } else if (IsOp("(")) {
        expr = Make(at, CallExpr{std::move(expr), ParseCallArguments()});
      } else {
        return expr;
      }
    }
  }

  ExprPtr ParseSubscript(ExprPtr object) {
    const SourcePosition at = Now().at;
    ExpectOp("[");
    ExprPtr start;
    if (!IsOp(":")) {
      start = ParseExpression();
      if (SkipOp("]")) return Make(at, IndexExpr{std::move(object), std::move(start)});
    }
    ExpectOp(":");
    SliceExpr slice;
    slice.object = std::move(object);
    slice.start = std::move(start);
    if (!IsOp(":") && !IsOp("]")) slice.stop = ParseExpression();
    if (SkipOp(":") && !IsOp("]")) slice.step = ParseExpression();
    ExpectOp("]");
    return Make(at, std::move(slice));
  }

  CallArguments ParseCallArguments() {
    CallArguments arguments;
    ExpectOp("(");
    bool first = true;
    while (!SkipOp(")")) {
      if (!first) {
        ExpectOp(",");
        if (SkipOp(")")) break;
      }
      first = false;
      if (IsOp("*") || IsOp("**")) {
        Unsupported(Now().at, "unpacking arguments with '" + Now().text + "' is not supported");
      }
      if (Now().kind == TokenKind::kName && IsOp("=", 1)) {
        std::string name = TakeName("an argument's name");
        ExpectOp("=");
        arguments.named.emplace_back(std::move(name), ParseExpression());
      } else {
        if (!arguments.named.empty()) Fail("a positional argument follows a named one");
        arguments.positional.push_back(ParseExpression());
      }
    }
    return arguments;
  }

  // Dotted names exist in Jinja, but no filter or test here has one.
  std::string ParseDottedName(const char* what) {
    std::string name = TakeName(what);
    while (SkipOp(".")) name += "." + TakeName(what);
    return name;
  }

  ExprPtr ParseFilter(ExprPtr input) {
    const SourcePosition at = Now().at;
    const std::string name = ParseDottedName("a filter's name");
    FilterExpr expr;
    expr.input = std::move(input);
    expr.filter = FindFilter(name);
    if (expr.filter == nullptr) Unsupported(at, "unknown filter '" + name + "'");
    if (IsOp("(")) expr.arguments = ParseCallArguments();
    CheckNamesInArguments(name, expr.arguments);
    return Make(at, std::move(expr));
  }

  // map('upper') and select('defined') name filters and tests in strings; check those here too.
  static void CheckNamesInArguments(const std::string& filter, const CallArguments& arguments) {
    const auto name_at = [&arguments](size_t i) -> const TextPtr* {
      if (i >= arguments.positional.size()) return nullptr;
      const auto* literal = std::get_if<LiteralExpr>(&arguments.positional[i]->node);
      if (literal == nullptr || !literal->value.is(Value::Type::kText)) return nullptr;
      return &literal->value.text();
    };
    if (filter == "map") {
      const TextPtr* name = name_at(0);
      if (name != nullptr && FindFilter((*name)->bytes()) == nullptr) {
        Unsupported(arguments.positional[0]->at,
                    "unknown filter '" + std::string((*name)->bytes()) + "'");
      }
      return;
    }
    const bool plain = filter == "select" || filter == "reject";
    if (!plain && filter != "selectattr" && filter != "rejectattr") return;
    const size_t i = plain ? 0 : 1;
    const TextPtr* name = name_at(i);
    if (name != nullptr && FindTest((*name)->bytes()) == nullptr) {
      Unsupported(arguments.positional[i]->at,
                  "unknown test '" + std::string((*name)->bytes()) + "'");
    }
  }

  // | a | b, without an input
  std::vector<ExprPtr> ParseFilterChain() {
    std::vector<ExprPtr> filters;
    while (SkipOp("|")) filters.push_back(ParseFilter(nullptr));
    return filters;
  }

  ExprPtr ParseFiltersAndTests(ExprPtr expr) {
    while (true) {
      const SourcePosition at = Now().at;
      if (SkipOp("|")) {
        expr = ParseFilter(std::move(expr));
      } else if (SkipName("is")) {
        expr = ParseTest(std::move(expr));
      } else if (IsOp("(")) {
        expr = Make(at, CallExpr{std::move(expr), ParseCallArguments()});
      } else {
        return expr;
      }
    }
  }

  ExprPtr ParseTest(ExprPtr input) {
    const SourcePosition not_at = Now().at;
    const bool negated = SkipName("not");
    const SourcePosition at = Now().at;
    const std::string name = ParseDottedName("a test's name");
    TestExpr expr;
    expr.input = std::move(input);
    expr.test = FindTest(name);
    if (expr.test == nullptr) Unsupported(at, "unknown test '" + name + "'");
    if (IsOp("(")) {
      expr.arguments = ParseCallArguments();
    } else if (AtTestOperand()) {
      if (IsName("is")) Fail("tests cannot be chained with 'is'");
      expr.arguments.positional.push_back(ParsePostfix(ParsePrimary()));
    }
    ExprPtr test = Make(at, std::move(expr));
    if (!negated) return test;
    return Make(not_at, UnaryExpr{UnaryOp::kNot, std::move(test)});
  }

  // `x is divisibleby 3`: what may follow a test's name without brackets.
  bool AtTestOperand() const {
    switch (Now().kind) {
      case TokenKind::kString:
      case TokenKind::kInteger:
      case TokenKind::kFloat:
        return true;
      case TokenKind::kName:
        // Jinja lacks "if" here and so rejects `a if b is defined if c`; nobody needs either.
        return !IsName("else") && !IsName("or") && !IsName("and") && !IsName("if") &&
               !IsName("in") && !IsName("not");
      case TokenKind::kOperator:
        return IsOp("[") || IsOp("{");
      default:
        return false;
    }
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;  // open loops that break and continue would refer to
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
