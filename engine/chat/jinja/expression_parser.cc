#include "engine/chat/jinja/expression_parser.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace tandem::engine {
namespace {

// ---- the depth of trees

void Deepen(int& depth, const ExprPtr& child) {
  if (child != nullptr) depth = std::max(depth, child->depth);
}
void Deepen(int& depth, const std::vector<ExprPtr>& children) {
  for (const ExprPtr& child : children) Deepen(depth, child);
}
void Deepen(int& depth, const ArgumentList& arguments) {
  Deepen(depth, arguments.positional);
  for (const auto& [name, value] : arguments.named) Deepen(depth, value);
  Deepen(depth, arguments.more_positional);
  Deepen(depth, arguments.more_named);
}
template <class... Children>
int DeepestOf(const Children&... children) {
  int depth = 0;
  (Deepen(depth, children), ...);
  return depth;
}

int DepthBelow(const LiteralExpr&) { return 0; }
int DepthBelow(const NameExpr&) { return 0; }
int DepthBelow(const AttributeExpr& e) { return DeepestOf(e.object); }
int DepthBelow(const IndexExpr& e) { return DeepestOf(e.object, e.index); }
int DepthBelow(const SliceExpr& e) { return DeepestOf(e.object, e.start, e.stop, e.step); }
int DepthBelow(const CallExpr& e) { return DeepestOf(e.callee, e.arguments); }
int DepthBelow(const FilterExpr& e) { return DeepestOf(e.input, e.arguments); }
int DepthBelow(const TestExpr& e) { return DeepestOf(e.input, e.arguments); }
int DepthBelow(const UnaryExpr& e) { return DeepestOf(e.operand); }
int DepthBelow(const BinaryExpr& e) { return DeepestOf(e.left, e.right); }
int DepthBelow(const LogicExpr& e) { return DeepestOf(e.left, e.right); }
int DepthBelow(const ConcatExpr& e) { return DeepestOf(e.parts); }
int DepthBelow(const ListExpr& e) { return DeepestOf(e.items); }
int DepthBelow(const ConditionalExpr& e) { return DeepestOf(e.condition, e.value, e.otherwise); }
int DepthBelow(const CompareExpr& e) {
  int depth = DeepestOf(e.first);
  for (const auto& [op, operand] : e.rest) Deepen(depth, operand);
  return depth;
}
int DepthBelow(const DictExpr& e) {
  int depth = 0;
  for (const auto& [key, value] : e.entries) depth = std::max(depth, DeepestOf(key, value));
  return depth;
}

// Bounds the depth of trees that grow without recursion here (a + b + c + ...), too, because the
// evaluator and the destructor recurse.
template <class Node>
ExprPtr Make(SourcePosition at, Node node) {
  auto expr = std::make_unique<Expr>();
  expr->at = at;
  expr->depth = DepthBelow(node) + 1;
  expr->node = std::move(node);
  if (expr->depth > kMaxExpressionDepth) TokenStream::FailAt(at, "the expression nests too deeply");
  return expr;
}

// Methods from the loosest operators to the tightest.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& in) : in_(in) {}

  ExprPtr ParseExpression(Conditional conditional = Conditional::kYes) {
    const TokenStream::Nesting nesting(in_);
    return conditional == Conditional::kYes ? ParseConditional() : ParseOr();
  }

  bool AtTupleEnd() const {
    const Token& token = in_.Now();
    return token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd ||
           token.kind == TokenKind::kEnd || in_.IsOp(")");
  }

  // An expression, or a tuple of several with commas.
  ExprPtr ParseTuple(Conditional conditional = Conditional::kYes) {
    const SourcePosition at = in_.Now().at;
    if (AtTupleEnd()) in_.Fail("expected an expression, found " + TokenStream::Describe(in_.Now()));
    ExprPtr first = ParseExpression(conditional);
    if (!in_.IsOp(",")) return first;
    ListExpr tuple{{}, ListKind::kTuple};
    tuple.items.push_back(std::move(first));
    while (in_.SkipOp(",")) {
      if (AtTupleEnd()) break;
      tuple.items.push_back(ParseExpression(conditional));
    }
    return Make(at, std::move(tuple));
  }

  ExprPtr ParseFilter(ExprPtr input) {
    const SourcePosition at = in_.Now().at;
    const std::string name = ParseDottedName("a filter's name");
    FilterExpr expr;
    expr.input = std::move(input);
    expr.name = name;
    expr.filter = FindFilter(name);
    if (in_.IsOp("(")) expr.arguments = ParseArgumentList();
    return Make(at, std::move(expr));
  }

  // | a | b, without an input
  std::vector<ExprPtr> ParseFilterChain() {
    std::vector<ExprPtr> filters;
    while (in_.SkipOp("|")) filters.push_back(ParseFilter(nullptr));
    return filters;
  }

 private:
  ExprPtr ParseConditional() {
    const SourcePosition at = in_.Now().at;
    ExprPtr value = ParseOr();
    while (in_.SkipName("if")) {
      ConditionalExpr conditional;
      conditional.value = std::move(value);
      conditional.condition = ParseOr();
      if (in_.SkipName("else")) conditional.otherwise = ParseExpression();
      value = Make(at, std::move(conditional));
    }
    return value;
  }

  ExprPtr ParseOr() {
    const SourcePosition at = in_.Now().at;
    ExprPtr left = ParseAnd();
    while (in_.SkipName("or"))
      left = Make(at, LogicExpr{LogicOp::kOr, std::move(left), ParseAnd()});
    return left;
  }

  ExprPtr ParseAnd() {
    const SourcePosition at = in_.Now().at;
    ExprPtr left = ParseNot();
    while (in_.SkipName("and"))
      left = Make(at, LogicExpr{LogicOp::kAnd, std::move(left), ParseNot()});
    return left;
  }

  ExprPtr ParseNot() {
    if (!in_.IsName("not")) return ParseComparison();
    const TokenStream::Nesting nesting(in_);
    const SourcePosition at = in_.Now().at;
    in_.Advance();
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
      if (in_.SkipOp(text)) return op;
    }
    if (in_.SkipName("in")) return CompareOp::kIn;
    if (in_.IsName("not") && in_.IsName("in", 1)) {
      in_.Advance(2);
      return CompareOp::kNotIn;
    }
    return std::nullopt;
  }

  ExprPtr ParseComparison() {
    const SourcePosition at = in_.Now().at;
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
    while (in_.IsOp("+") || in_.IsOp("-")) {
      const SourcePosition at = in_.Now().at;
      const BinaryOp op = in_.IsOp("+") ? BinaryOp::kAdd : BinaryOp::kSubtract;
      in_.Advance();
      left = Make(at, BinaryExpr{op, std::move(left), ParseConcat()});
    }
    return left;
  }

  ExprPtr ParseConcat() {
    const SourcePosition at = in_.Now().at;
    ExprPtr first = ParseProduct();
    if (!in_.IsOp("~")) return first;
    ConcatExpr concat;
    concat.parts.push_back(std::move(first));
    while (in_.SkipOp("~")) concat.parts.push_back(ParseProduct());
    return Make(at, std::move(concat));
  }

  ExprPtr ParseProduct() {
    ExprPtr left = ParsePower();
    while (in_.IsOp("*") || in_.IsOp("/") || in_.IsOp("//") || in_.IsOp("%")) {
      const SourcePosition at = in_.Now().at;
      const BinaryOp op = in_.IsOp("*")    ? BinaryOp::kMultiply
                          : in_.IsOp("/")  ? BinaryOp::kDivide
                          : in_.IsOp("//") ? BinaryOp::kFloorDivide
                                           : BinaryOp::kModulo;
      in_.Advance();
      left = Make(at, BinaryExpr{op, std::move(left), ParsePower()});
    }
    return left;
  }

  // As in Jinja and unlike Python: left-associative and looser than unary minus.
  ExprPtr ParsePower() {
    ExprPtr left = ParseUnary(Filters::kYes);
    while (in_.IsOp("**")) {
      const SourcePosition at = in_.Now().at;
      in_.Advance();
      left = Make(at, BinaryExpr{BinaryOp::kPower, std::move(left), ParseUnary(Filters::kYes)});
    }
    return left;
  }

  enum class Filters { kYes, kNo };

  ExprPtr ParseUnary(Filters filters) {
    const TokenStream::Nesting nesting(in_);
    const SourcePosition at = in_.Now().at;
    ExprPtr expr;
    if (in_.SkipOp("-")) {
      expr = Make(at, UnaryExpr{UnaryOp::kMinus, ParseUnary(Filters::kNo)});
    } else if (in_.SkipOp("+")) {
      expr = Make(at, UnaryExpr{UnaryOp::kPlus, ParseUnary(Filters::kNo)});
    } else {
      expr = ParsePrimary();
    }
    expr = ParsePostfix(std::move(expr));
    if (filters == Filters::kYes) expr = ParseFiltersAndTests(std::move(expr));
    return expr;
  }

  ExprPtr ParsePrimary() {
    const Token& token = in_.Now();
    const SourcePosition at = token.at;
    switch (token.kind) {
      case TokenKind::kName:
        in_.Advance();
        if (token.text == "true" || token.text == "True") return Literal(at, Value::Bool(true));
        if (token.text == "false" || token.text == "False") return Literal(at, Value::Bool(false));
        if (token.text == "none" || token.text == "None") return Literal(at, Value());
        return Make(at, NameExpr{token.text});
      case TokenKind::kString: {
        std::string text;
        while (in_.Now().kind == TokenKind::kString) text += in_.Take().text;
        return Literal(at, Value::Literal(std::move(text)));
      }
      case TokenKind::kInteger:
        in_.Advance();
        return Literal(at, Value::Int(ParseInteger(token)));
      case TokenKind::kFloat:
        in_.Advance();
        return Literal(at, Value::Float(ParseFloat(token)));
      case TokenKind::kOperator:
        if (token.text == "(") return ParseParenthesized();
        if (token.text == "[") return ParseList();
        if (token.text == "{") return ParseDict();
        [[fallthrough]];
      default:
        in_.Fail("expected an expression, found " + TokenStream::Describe(token));
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
      TokenStream::FailAt(token.at, "the integer does not fit into 64 bits");
    }
    return value;
  }

  static double ParseFloat(const Token& token) {
    double value = 0;
    const char* end = token.text.data() + token.text.size();
    const auto result = std::from_chars(token.text.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end) {
      TokenStream::FailAt(token.at, "the number is out of range");
    }
    return value;
  }

  ExprPtr ParseParenthesized() {
    const SourcePosition at = in_.Now().at;
    in_.ExpectOp("(");
    if (in_.SkipOp(")")) return Make(at, ListExpr{{}, ListKind::kTuple});
    ExprPtr inner = ParseTuple();
    in_.ExpectOp(")");
    return inner;
  }

  ExprPtr ParseList() {
    const SourcePosition at = in_.Now().at;
    in_.ExpectOp("[");
    ListExpr list{{}, ListKind::kList};
    while (!in_.SkipOp("]")) {
      if (!list.items.empty()) {
        in_.ExpectOp(",");
        if (in_.SkipOp("]")) break;
      }
      list.items.push_back(ParseExpression());
    }
    return Make(at, std::move(list));
  }

  ExprPtr ParseDict() {
    const SourcePosition at = in_.Now().at;
    in_.ExpectOp("{");
    DictExpr dict;
    while (!in_.SkipOp("}")) {
      if (!dict.entries.empty()) {
        in_.ExpectOp(",");
        if (in_.SkipOp("}")) break;
      }
      ExprPtr key = ParseExpression();
      in_.ExpectOp(":");
      dict.entries.emplace_back(std::move(key), ParseExpression());
    }
    return Make(at, std::move(dict));
  }

  ExprPtr ParsePostfix(ExprPtr expr) {
    while (true) {
      const SourcePosition at = in_.Now().at;
      if (in_.SkipOp(".")) {
        if (in_.Now().kind == TokenKind::kInteger) {
          ExprPtr index = Literal(at, Value::Int(ParseInteger(in_.Now())));
          in_.Advance();
          expr = Make(at, IndexExpr{std::move(expr), std::move(index)});
        } else {
          expr = Make(at, AttributeExpr{std::move(expr), in_.TakeName("a name behind '.'")});
        }
      } else if (in_.IsOp("[")) {
        expr = ParseSubscript(std::move(expr));
      } else if (in_.IsOp("(")) {
        expr = Make(at, CallExpr{std::move(expr), ParseArgumentList()});
      } else {
        return expr;
      }
    }
  }

  ExprPtr ParseSubscript(ExprPtr object) {
    const SourcePosition at = in_.Now().at;
    in_.ExpectOp("[");
    ExprPtr start;
    if (!in_.IsOp(":")) {
      start = ParseExpression();
      if (in_.SkipOp("]")) return Make(at, IndexExpr{std::move(object), std::move(start)});
    }
    in_.ExpectOp(":");
    SliceExpr slice;
    slice.object = std::move(object);
    slice.start = std::move(start);
    if (!in_.IsOp(":") && !in_.IsOp("]")) slice.stop = ParseExpression();
    if (in_.SkipOp(":") && !in_.IsOp("]")) slice.step = ParseExpression();
    in_.ExpectOp("]");
    return Make(at, std::move(slice));
  }

  ArgumentList ParseArgumentList() {
    ArgumentList arguments;
    in_.ExpectOp("(");
    bool first = true;
    while (!in_.SkipOp(")")) {
      if (!first) {
        in_.ExpectOp(",");
        if (in_.SkipOp(")")) break;
      }
      first = false;
      if (in_.IsOp("*") || in_.IsOp("**")) {
        ExprPtr& more = in_.IsOp("*") ? arguments.more_positional : arguments.more_named;
        if (more != nullptr || arguments.more_named != nullptr) {
          in_.Fail("unexpected '" + in_.Now().text + "'");
        }
        in_.Advance();
        more = ParseExpression();
        continue;
      }
      if (in_.Now().kind == TokenKind::kName && in_.IsOp("=", 1)) {
        std::string name = in_.TakeName("an argument's name");
        in_.ExpectOp("=");
        arguments.named.emplace_back(std::move(name), ParseExpression());
      } else {
        if (!arguments.named.empty() || arguments.more_positional != nullptr ||
            arguments.more_named != nullptr) {
          in_.Fail("a positional argument follows a named one");
        }
        arguments.positional.push_back(ParseExpression());
      }
    }
    return arguments;
  }

  // Jinja allows dotted names, but no filter or test here has one.
  std::string ParseDottedName(const char* what) {
    std::string name = in_.TakeName(what);
    while (in_.SkipOp(".")) name += "." + in_.TakeName(what);
    return name;
  }

  ExprPtr ParseFiltersAndTests(ExprPtr expr) {
    while (true) {
      const SourcePosition at = in_.Now().at;
      if (in_.SkipOp("|")) {
        expr = ParseFilter(std::move(expr));
      } else if (in_.SkipName("is")) {
        expr = ParseTest(std::move(expr));
      } else if (in_.IsOp("(")) {
        expr = Make(at, CallExpr{std::move(expr), ParseArgumentList()});
      } else {
        return expr;
      }
    }
  }

  ExprPtr ParseTest(ExprPtr input) {
    const SourcePosition not_at = in_.Now().at;
    const bool negated = in_.SkipName("not");
    const SourcePosition at = in_.Now().at;
    const std::string name = ParseDottedName("a test's name");
    TestExpr expr;
    expr.input = std::move(input);
    expr.name = name;
    expr.test = FindTest(name);
    if (in_.IsOp("(")) {
      expr.arguments = ParseArgumentList();
    } else if (AtTestOperand()) {
      if (in_.IsName("is")) in_.Fail("tests cannot be chained with 'is'");
      expr.arguments.positional.push_back(ParsePostfix(ParsePrimary()));
    }
    ExprPtr test = Make(at, std::move(expr));
    if (!negated) return test;
    return Make(not_at, UnaryExpr{UnaryOp::kNot, std::move(test)});
  }

  // `x is divisibleby 3`: tokens that may begin a test's operand without brackets.
  bool AtTestOperand() const {
    switch (in_.Now().kind) {
      case TokenKind::kString:
      case TokenKind::kInteger:
      case TokenKind::kFloat:
        return true;
      case TokenKind::kName:
        // Jinja lacks "if" here and so rejects `a if b is defined if c`, which templates do not
        // use.
        return !in_.IsName("else") && !in_.IsName("or") && !in_.IsName("and") &&
               !in_.IsName("if") && !in_.IsName("in") && !in_.IsName("not");
      case TokenKind::kOperator:
        return in_.IsOp("[") || in_.IsOp("{");
      default:
        return false;
    }
  }

  TokenStream& in_;
};

}  // namespace

ExprPtr ParseExpression(TokenStream& in) { return ExpressionParser(in).ParseExpression(); }

ExprPtr ParseTuple(TokenStream& in, Conditional conditional) {
  return ExpressionParser(in).ParseTuple(conditional);
}

ExprPtr ParseFilter(TokenStream& in) { return ExpressionParser(in).ParseFilter(nullptr); }

std::vector<ExprPtr> ParseFilterChain(TokenStream& in) {
  return ExpressionParser(in).ParseFilterChain();
}

}  // namespace tandem::engine
