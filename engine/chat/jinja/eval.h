#pragma once

#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/jinja/ast.h"

namespace tandem::engine {

// The variables of one block; lookups continue in the enclosing blocks. Names are views into the
// syntax tree or the input, which outlive a rendering.
struct Scope {
  std::shared_ptr<Scope> parent;  // null: the outermost
  std::map<std::string_view, Value> variables;
};

// Runs one rendering of a template. One thread uses it once; the tree and the names passed to
// Define() must outlive it.
class Evaluator {
 public:
  explicit Evaluator(Runtime& rt);
  // Breaks the cycles that macros and namespaces may have formed.
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  void Define(std::string_view name, Value value);
  TextPtr Render(const Block& body);
  // The ranges of {% generation %} blocks in the text of the last Render, in order.
  const std::vector<std::pair<size_t, size_t>>& generations() const { return generations_; }
  // Whether a {% generation %} block wrote into a string (a macro, a {% set %} block), so that its
  // place is unknown.
  bool lost_a_generation() const { return lost_a_generation_; }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class ScopeGuard;

  // ---- statements
  Flow Run(const Block& body);
  Flow RunStatement(const Stmt& statement);
  Flow RunNode(const TextStmt& s);
  Flow RunNode(const OutputStmt& s);
  Flow RunNode(const IfStmt& s);
  Flow RunNode(const ForStmt& s);
  Flow RunElse(const ForStmt& s);  // in a scope of its own, like a round
  Flow RunNode(const SetStmt& s);
  Flow RunNode(const SetBlockStmt& s);
  Flow RunNode(const FilterBlockStmt& s);
  Flow RunNode(const MacroStmt& s);
  Flow RunNode(const CallBlockStmt& s);
  Flow RunNode(const WithStmt& s);
  Flow RunNode(const GenerationStmt& s);
  Flow RunNode(const BreakStmt& s);
  Flow RunNode(const ContinueStmt& s);

  std::vector<Value> LoopItems(const ForStmt& s);
  // The output of `body`, run in a scope of its own.
  Value Capture(const Block& body);
  Value ApplyFilters(const std::vector<ExprPtr>& filters, Value value);
  void Assign(const Target& target, const Value& value);
  void Assign(std::string_view name, Value value);
  Value MakeMacro(std::string_view name, const std::vector<Parameter>& parameters,
                  const Block& body);
  Value CallMacro(const std::shared_ptr<Scope>& scope, std::string_view name,
                  const std::vector<Parameter>& parameters, const Block& body,
                  const Arguments& arguments);
  void BindParameters(std::string_view name, const std::vector<Parameter>& parameters,
                      const Arguments& arguments);

  // ---- expressions
  Value Eval(const Expr& expr);
  Value EvalOr(const ExprPtr& expr, Value absent);
  Value EvalNode(const LiteralExpr& e);
  Value EvalNode(const NameExpr& e);
  Value EvalNode(const AttributeExpr& e);
  Value EvalNode(const IndexExpr& e);
  Value EvalNode(const SliceExpr& e);
  Value EvalNode(const CallExpr& e);
  Value EvalNode(const FilterExpr& e);
  Value EvalNode(const TestExpr& e);
  Value EvalNode(const UnaryExpr& e);
  Value EvalNode(const BinaryExpr& e);
  Value EvalNode(const LogicExpr& e);
  Value EvalNode(const CompareExpr& e);
  Value EvalNode(const ConcatExpr& e);
  Value EvalNode(const ConditionalExpr& e);
  Value EvalNode(const ListExpr& e);
  Value EvalNode(const DictExpr& e);

  Arguments EvalArguments(const ArgumentList& arguments);
  Value Call(const Value& callee, const Arguments& arguments);
  Value Lookup(std::string_view name) const;
  Value MakeNamespace(const Arguments& arguments);
  void DefineFunction(std::string_view name,
                      std::function<Value(Runtime&, const Arguments&)> function);

  Runtime& rt_;
  std::shared_ptr<Scope> scope_;
  TextBuilder* out_ = nullptr;  // the current target of output
  TextBuilder* outermost_ = nullptr;
  std::vector<std::pair<size_t, size_t>> generations_;
  bool lost_a_generation_ = false;
  // Namespaces are mutable and a macro holds the scope that holds it. Both can form cycles and
  // chains of any length, so they live until the end of the rendering and are emptied there.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Scope>> macro_scopes_;
};

}  // namespace tandem::engine
