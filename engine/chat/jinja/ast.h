#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/chat/jinja/filters.h"
#include "engine/chat/jinja/tests.h"
#include "engine/chat/jinja/value.h"

// The syntax tree of a template: plain data, built by the parser, read by the evaluator.
namespace tandem::engine {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Block = std::vector<Stmt>;

struct ArgumentList {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr more_positional;  // *expression; may be null
  ExprPtr more_named;       // **expression; may be null
};

struct LiteralExpr {
  Value value;
};
struct NameExpr {
  std::string name;
};
struct AttributeExpr {  // object.name
  ExprPtr object;
  std::string name;
};
struct IndexExpr {  // object[index]
  ExprPtr object;
  ExprPtr index;
};
struct SliceExpr {  // object[start:stop:step]; each may be null
  ExprPtr object;
  ExprPtr start;
  ExprPtr stop;
  ExprPtr step;
};
struct CallExpr {
  ExprPtr callee;
  ArgumentList arguments;
};
struct FilterExpr {  // input | name(arguments); no input inside {% filter %} and {% set %} blocks
  ExprPtr input;
  std::string name;
  FilterFunction filter;  // null: unknown, which fails when it is applied
  ArgumentList arguments;
};
struct TestExpr {  // input is name(arguments)
  ExprPtr input;
  std::string name;
  TestFunction test;  // null: unknown, which fails when it is evaluated
  ArgumentList arguments;
};

enum class UnaryOp { kNot, kMinus, kPlus };
struct UnaryExpr {
  UnaryOp op;
  ExprPtr operand;
};

enum class BinaryOp { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
struct BinaryExpr {
  BinaryOp op;
  ExprPtr left;
  ExprPtr right;
};

enum class LogicOp { kAnd, kOr };
struct LogicExpr {
  LogicOp op;
  ExprPtr left;
  ExprPtr right;
};

enum class CompareOp { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
struct CompareExpr {  // first op operand op operand ..., as Python chains them
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};
struct ConcatExpr {  // a ~ b ~ c
  std::vector<ExprPtr> parts;
};
struct ConditionalExpr {  // value if condition else otherwise (may be null)
  ExprPtr condition;
  ExprPtr value;
  ExprPtr otherwise;
};
struct ListExpr {
  std::vector<ExprPtr> items;
  ListKind kind;
};
struct DictExpr {
  std::vector<std::pair<ExprPtr, ExprPtr>> entries;
};

struct Expr {
  SourcePosition at;
  int depth = 1;  // of the tree below, bounded by the parser
  std::variant<LiteralExpr, NameExpr, AttributeExpr, IndexExpr, SliceExpr, CallExpr, FilterExpr,
               TestExpr, UnaryExpr, BinaryExpr, LogicExpr, CompareExpr, ConcatExpr, ConditionalExpr,
               ListExpr, DictExpr>
      node;
};

// The target of an assignment: a name, a namespace's attribute, or several targets.
struct Target {
  std::string name;
  std::string attribute;         // not empty: name.attribute
  std::vector<Target> elements;  // not empty: unpacks into these, and name is empty
};

struct TextStmt {
  TextPtr text;
};
struct OutputStmt {  // {{ value }}
  ExprPtr value;
};
struct IfStmt {
  struct Branch {
    ExprPtr condition;  // null: else
    Block body;
  };
  std::vector<Branch> branches;
};
struct ForStmt {
  Target target;
  ExprPtr iterable;
  ExprPtr filter;  // may be null
  Block body;
  Block otherwise;
};
struct SetStmt {
  Target target;
  ExprPtr value;
};
struct SetBlockStmt {  // {% set x | filter %}body{% endset %}
  Target target;
  std::vector<ExprPtr> filters;
  Block body;
};
struct FilterBlockStmt {
  std::vector<ExprPtr> filters;
  Block body;
};
struct Parameter {
  std::string name;
  ExprPtr fallback;  // may be null
};
struct MacroStmt {
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
};
struct CallBlockStmt {  // {% call(parameters) call %}body{% endcall %}
  std::vector<Parameter> parameters;
  ExprPtr call;  // a CallExpr
  Block body;
};
struct WithStmt {
  std::vector<std::pair<Target, ExprPtr>> assignments;
  Block body;
};
struct GenerationStmt {  // {% generation %}: marks the model's text; renders its body
  Block body;
};
struct BreakStmt {};
struct ContinueStmt {};

struct Stmt {
  SourcePosition at;
  std::variant<TextStmt, OutputStmt, IfStmt, ForStmt, SetStmt, SetBlockStmt, FilterBlockStmt,
               MacroStmt, CallBlockStmt, WithStmt, GenerationStmt, BreakStmt, ContinueStmt>
      node;
};

}  // namespace tandem::engine
