// The part of Evaluator that computes expressions.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/chat/jinja/access.h"
#include "engine/chat/jinja/eval.h"
#include "engine/chat/jinja/filters.h"
#include "engine/chat/jinja/operators.h"
#include "engine/chat/jinja/print.h"
#include "engine/chat/jinja/tests.h"

namespace tandem::engine {

Value Evaluator::Eval(const Expr& expr) {
  rt_.set_position(expr.at);
  rt_.Step();
  const Runtime::DepthGuard depth(rt_);
  return std::visit([this](const auto& node) { return EvalNode(node); }, expr.node);
}

Value Evaluator::EvalOr(const ExprPtr& expr, Value absent) {
  return expr == nullptr ? std::move(absent) : Eval(*expr);
}

Value Evaluator::Lookup(std::string_view name) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    const auto it = scope->variables.find(name);
    if (it != scope->variables.end()) return it->second;
  }
  return Value::MakeUndefined("'" + std::string(name) + "' is undefined");
}

Value Evaluator::EvalNode(const LiteralExpr& e) { return e.value; }

Value Evaluator::EvalNode(const NameExpr& e) { return Lookup(e.name); }

Value Evaluator::EvalNode(const AttributeExpr& e) {
  const Value object = Eval(*e.object);
  return GetAttribute(rt_, object, e.name);
}

Value Evaluator::EvalNode(const IndexExpr& e) {
  const Value object = Eval(*e.object);
  const Value index = Eval(*e.index);
  return GetItem(rt_, object, index);
}

Value Evaluator::EvalNode(const SliceExpr& e) {
  const Value object = Eval(*e.object);
  const Value start = EvalOr(e.start, Value());
  const Value stop = EvalOr(e.stop, Value());
  const Value step = EvalOr(e.step, Value());
  return GetSlice(rt_, object, start, stop, step);
}

Arguments Evaluator::EvalArguments(const ArgumentList& arguments) {
  Arguments values;
  values.positional.reserve(arguments.positional.size());
  for (const ExprPtr& argument : arguments.positional) values.positional.push_back(Eval(*argument));
  for (const auto& [name, argument] : arguments.named) {
    values.named.emplace_back(name, Eval(*argument));
  }
  if (arguments.more_positional != nullptr) {
    const Value more = Eval(*arguments.more_positional);
    for (const Value& value : Elements(rt_, more)) values.positional.push_back(value);
  }
  if (arguments.more_named != nullptr) {
    const Value more = Eval(*arguments.more_named);
    if (!more.is(Value::Type::kDict)) {
      rt_.Fail("the argument behind '**' must be a dict, got '" + TypeName(more) + "'");
    }
    for (const auto& [key, value] : more.dict().entries) {
      const Text& name = RequireText(rt_, key, "a key behind '**'");
      rt_.Step();
      values.named.emplace_back(std::string(name.bytes()), value);
      if (name.any_client()) values.client_names.emplace(name.bytes());
    }
  }
  return values;
}

Value Evaluator::Call(const Value& callee, const Arguments& arguments) {
  RequireDefined(rt_, callee);
  if (!callee.is(Value::Type::kCallable)) {
    rt_.Fail("'" + TypeName(callee) + "' object is not callable");
  }
  return callee.callable().call(rt_, arguments);
}

Value Evaluator::EvalNode(const CallExpr& e) {
  const Value callee = Eval(*e.callee);
  return Call(callee, EvalArguments(e.arguments));
}

Value Evaluator::EvalNode(const FilterExpr& e) {
  if (e.filter == nullptr) FailUnknownFilter(rt_, e.name);
  const Value input = Eval(*e.input);
  return e.filter(rt_, input, EvalArguments(e.arguments));
}

Value Evaluator::EvalNode(const TestExpr& e) {
  if (e.test == nullptr) FailUnknownTest(rt_, e.name);
  const Value input = Eval(*e.input);
  return Value::Bool(e.test(rt_, input, EvalArguments(e.arguments)));
}

Value Evaluator::EvalNode(const UnaryExpr& e) {
  Value operand = Eval(*e.operand);
  if (e.op == UnaryOp::kNot) return Value::Bool(!IsTrue(operand));
  if (e.op == UnaryOp::kMinus) return Negate(rt_, operand);
  RequireDefined(rt_, operand);
  if (!operand.is_number()) rt_.Fail("the operand of '+' must be a number");
  return operand.is(Value::Type::kBool) ? Value::Int(operand.integral()) : operand;
}

Value Evaluator::EvalNode(const BinaryExpr& e) {
  const Value left = Eval(*e.left);
  const Value right = Eval(*e.right);
  return Calculate(rt_, e.op, left, right);
}

Value Evaluator::EvalNode(const LogicExpr& e) {
  Value left = Eval(*e.left);
  if (IsTrue(left) == (e.op == LogicOp::kOr)) return left;
  return Eval(*e.right);
}

Value Evaluator::EvalNode(const CompareExpr& e) {
  Value left = Eval(*e.first);
  for (const auto& [op, operand] : e.rest) {
    Value right = Eval(*operand);
    if (!CompareValues(rt_, op, left, right)) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Evaluator::EvalNode(const ConcatExpr& e) {
  TextBuilder out(rt_);
  for (const ExprPtr& part : e.parts) AppendText(out, Eval(*part));
  return Value::Of(out.Take());
}

Value Evaluator::EvalNode(const ConditionalExpr& e) {
  if (IsTrue(Eval(*e.condition))) return Eval(*e.value);
  if (e.otherwise != nullptr) return Eval(*e.otherwise);
  return Value::MakeUndefined("the inline if evaluated to false and has no else");
}

Value Evaluator::EvalNode(const ListExpr& e) {
  std::vector<Value> items;
  items.reserve(e.items.size());
  for (const ExprPtr& item : e.items) items.push_back(Eval(*item));
  return MakeList(rt_, std::move(items), e.kind);
}

Value Evaluator::EvalNode(const DictExpr& e) {
  DictBuilder dict(rt_);
  for (const auto& [key, value] : e.entries) {
    const Value evaluated_key = Eval(*key);
    dict.Set(evaluated_key, Eval(*value));
  }
  return dict.Take();
}

}  // namespace tandem::engine
