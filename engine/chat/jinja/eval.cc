#include "engine/chat/jinja/eval.h"

#include <algorithm>
#include <utility>

#include "engine/chat/jinja/access.h"
#include "engine/chat/jinja/operators.h"
#include "engine/chat/jinja/print.h"
#include "engine/chat/jinja/time.h"

namespace tandem::engine {
namespace {

Value Range(Runtime& rt, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "range", {"start", "stop", "step"}, 1);
  int64_t start = 0;
  int64_t stop = RequireInt(rt, *bound[0], "range's argument");
  if (bound[1] != nullptr) {
    start = stop;
    stop = RequireInt(rt, *bound[1], "range's stop");
  }
  const int64_t step = bound[2] == nullptr ? 1 : RequireInt(rt, *bound[2], "range's step");
  if (step == 0) rt.Fail("range's step must not be zero");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    rt.Step();
    if (static_cast<int64_t>(items.size()) == kMaxRange) {
      rt.Fail("range() has more than " + std::to_string(kMaxRange) + " elements");
    }
    items.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return MakeList(rt, std::move(items));
}

// dict(other, a=1): the optional positional argument may also be pairs.
Value MakeDict(Runtime& rt, const Arguments& arguments) {
  DictBuilder dict(rt);
  if (arguments.positional.size() > 1) rt.Fail("dict() takes at most one positional argument");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is(Value::Type::kDict)) {
      for (const auto& [key, value] : source.dict().entries) dict.Set(key, value);
    } else {
      for (const Value& pair : Elements(rt, source)) {
        const std::vector<Value> items = Elements(rt, pair);
        if (items.size() != 2) rt.Fail("dict() needs pairs");
        dict.Set(items[0], items[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) {
    dict.Set(arguments.NameAsValue(name), value);
  }
  return dict.Take();
}

Value RaiseException(Runtime& rt, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "raise_exception", {"message"}, 1);
  // The template author's own message, without a position.
  const TextPtr message = ToText(rt, *bound[0]);
  throw Error(ErrorCode::kInvalidArgument, std::string(message->bytes())).WithParam("messages");
}

}  // namespace

// Opens a scope inside the current one, or inside `parent`.
class Evaluator::ScopeGuard {
 public:
  ScopeGuard(Evaluator& evaluator, std::shared_ptr<Scope> parent)
      : evaluator_(evaluator), outer_(evaluator.scope_) {
    evaluator_.rt_.Work(sizeof(Scope));
    auto scope = std::make_shared<Scope>();
    scope->parent = std::move(parent);
    evaluator_.scope_ = std::move(scope);
  }
  explicit ScopeGuard(Evaluator& evaluator) : ScopeGuard(evaluator, evaluator.scope_) {}
  ~ScopeGuard() { evaluator_.scope_ = std::move(outer_); }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Evaluator& evaluator_;
  std::shared_ptr<Scope> outer_;
};

Evaluator::Evaluator(Runtime& rt) : rt_(rt), scope_(std::make_shared<Scope>()) {
  DefineFunction("range", Range);
  DefineFunction("dict", MakeDict);
  DefineFunction("raise_exception", RaiseException);
  DefineFunction("strftime_now", StrftimeNow);
  DefineFunction("namespace",
                 [this](Runtime&, const Arguments& arguments) { return MakeNamespace(arguments); });
}

Evaluator::~Evaluator() {
  for (const auto& ns : namespaces_) ns->attributes.clear();
  // The parents hold arguments, which may be macros with scopes of their own.
  for (const auto& macro_scope : macro_scopes_) {
    for (Scope* scope = macro_scope.get(); scope != nullptr; scope = scope->parent.get()) {
      scope->variables.clear();
    }
  }
}

void Evaluator::Define(std::string_view name, Value value) {
  scope_->variables.insert_or_assign(name, std::move(value));
}

void Evaluator::DefineFunction(std::string_view name,
                               std::function<Value(Runtime&, const Arguments&)> function) {
  Define(name, MakeCallable(rt_, std::string(name), Value(), std::move(function)));
}

Value Evaluator::MakeNamespace(const Arguments& arguments) {
  rt_.Work(sizeof(Namespace));
  const Value initial = MakeDict(rt_, arguments);
  auto ns = std::make_shared<Namespace>();
  for (const auto& [key, value] : initial.dict().entries) {
    const Text& name = RequireText(rt_, key, "a namespace's attribute");
    ns->attributes.insert_or_assign(std::string(name.bytes()), value);
  }
  namespaces_.push_back(ns);
  return Value::Of(std::move(ns));
}

TextPtr Evaluator::Render(const Block& body) {
  TextBuilder out(rt_);
  out_ = outermost_ = &out;
  // Templates may assign to input names; the original values stay visible outside the scope.
  const ScopeGuard scope(*this);
  Run(body);
  out_ = nullptr;
  return out.Take();
}

// ---- statements

Evaluator::Flow Evaluator::Run(const Block& body) {
  for (const Stmt& statement : body) {
    const Flow flow = RunStatement(statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::RunStatement(const Stmt& statement) {
  rt_.set_position(statement.at);
  rt_.Step();
  const Runtime::DepthGuard depth(rt_);
  return std::visit([this](const auto& node) { return RunNode(node); }, statement.node);
}

Evaluator::Flow Evaluator::RunNode(const TextStmt& s) {
  out_->Append(*s.text);
  return Flow::kNext;
}

Evaluator::Flow Evaluator::RunNode(const OutputStmt& s) {
  const Value value = Eval(*s.value);
  AppendText(*out_, value);
  return Flow::kNext;
}

Evaluator::Flow Evaluator::RunNode(const IfStmt& s) {
  for (const IfStmt::Branch& branch : s.branches) {
    if (branch.condition == nullptr || IsTrue(Eval(*branch.condition))) return Run(branch.body);
  }
  return Flow::kNext;
}

std::vector<Value> Evaluator::LoopItems(const ForStmt& s) {
  const Value iterable = Eval(*s.iterable);
  std::vector<Value> items = Elements(rt_, iterable);
  if (s.filter == nullptr) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    const ScopeGuard scope(*this);
    Assign(s.target, item);
    if (IsTrue(Eval(*s.filter))) kept.push_back(std::move(item));
  }
  return kept;
}

Evaluator::Flow Evaluator::RunNode(const ForStmt& s) {
  // Held as a list so that `loop` can show neighbours; its depth guards against endless nesting.
  const std::shared_ptr<const List> items = MakeList(rt_, LoopItems(s)).list_pointer();
  if (items->items.empty()) return RunElse(s);
  // Emptied after the loop, because the value may hold the loop itself.
  const auto changing = std::make_shared<std::optional<Value>>();
  const std::shared_ptr<void> emptied(nullptr, [&](void*) { changing->reset(); });
  Flow flow = Flow::kNext;
  bool completed = false;
  for (size_t i = 0; i < items->items.size() && flow != Flow::kBreak; ++i) {
    rt_.Step();
    const ScopeGuard scope(*this);
    auto loop = std::make_shared<const LoopState>(LoopState{items, i, changing});
    Assign("loop", Value::Of(std::move(loop)));
    Assign(s.target, items->items[i]);
    flow = Run(s.body);
    completed = completed || flow == Flow::kNext;
  }
  // As in Jinja, else also runs when no round completed, because of break or continue.
  return completed ? Flow::kNext : RunElse(s);
}

Evaluator::Flow Evaluator::RunElse(const ForStmt& s) {
  const ScopeGuard scope(*this);
  return Run(s.otherwise);
}

Evaluator::Flow Evaluator::RunNode(const SetStmt& s) {
  Assign(s.target, Eval(*s.value));
  return Flow::kNext;
}

Evaluator::Flow Evaluator::RunNode(const SetBlockStmt& s) {
  Assign(s.target, ApplyFilters(s.filters, Capture(s.body)));
  return Flow::kNext;
}

Evaluator::Flow Evaluator::RunNode(const FilterBlockStmt& s) {
  const Value value = ApplyFilters(s.filters, Capture(s.body));
  AppendText(*out_, value);
  return Flow::kNext;
}

Evaluator::Flow Evaluator::RunNode(const MacroStmt& s) {
  Assign(s.name, MakeMacro(s.name, s.parameters, s.body));
  return Flow::kNext;
}

Evaluator::Flow Evaluator::RunNode(const CallBlockStmt& s) {
  const auto& call = std::get<CallExpr>(s.call->node);
  const Value callee = Eval(*call.callee);
  Arguments arguments = EvalArguments(call.arguments);
  arguments.named.emplace_back("caller", MakeMacro("caller", s.parameters, s.body));
  AppendText(*out_, Call(callee, arguments));
  return Flow::kNext;
}

Evaluator::Flow Evaluator::RunNode(const WithStmt& s) {
  std::vector<Value> values;
  for (const auto& [target, value] : s.assignments) values.push_back(Eval(*value));
  const ScopeGuard scope(*this);
  for (size_t i = 0; i < values.size(); ++i) Assign(s.assignments[i].first, values[i]);
  return Run(s.body);
}

Evaluator::Flow Evaluator::RunNode(const GenerationStmt& s) {
  const ScopeGuard scope(*this);
  const size_t begin = out_->size();
  const Flow flow = Run(s.body);
  if (out_ != outermost_) {
    lost_a_generation_ = true;
  } else if (out_->size() > begin) {
    generations_.emplace_back(begin, out_->size());
  }
  return flow;
}

Evaluator::Flow Evaluator::RunNode(const BreakStmt&) { return Flow::kBreak; }
Evaluator::Flow Evaluator::RunNode(const ContinueStmt&) { return Flow::kContinue; }

Value Evaluator::Capture(const Block& body) {
  TextBuilder captured(rt_);
  TextBuilder* const outer = std::exchange(out_, &captured);
  const ScopeGuard scope(*this);
  Run(body);
  out_ = outer;
  return Value::Of(captured.Take());
}

Value Evaluator::ApplyFilters(const std::vector<ExprPtr>& filters, Value value) {
  for (const ExprPtr& filter : filters) {
    const auto& node = std::get<FilterExpr>(filter->node);
    rt_.set_position(filter->at);
    rt_.Step();
    if (node.filter == nullptr) FailUnknownFilter(rt_, node.name);
    value = node.filter(rt_, value, EvalArguments(node.arguments));
  }
  return value;
}

void Evaluator::Assign(std::string_view name, Value value) {
  scope_->variables.insert_or_assign(name, std::move(value));
}

void Evaluator::Assign(const Target& target, const Value& value) {
  rt_.Step();
  if (target.elements.empty()) {
    if (target.attribute.empty()) return Assign(target.name, value);
    const Value ns = Lookup(target.name);
    if (!ns.is(Value::Type::kNamespace)) {
      rt_.Fail("cannot assign to an attribute of '" + target.name + "', which is no namespace");
    }
    ns.name_space()->attributes.insert_or_assign(target.attribute, value);
    return;
  }
  RequireDefined(rt_, value);
  const std::vector<Value> values = Elements(rt_, value);
  if (values.size() != target.elements.size()) {
    rt_.Fail("cannot unpack " + std::to_string(values.size()) + " values into " +
             std::to_string(target.elements.size()) + " names");
  }
  for (size_t i = 0; i < values.size(); ++i) Assign(target.elements[i], values[i]);
}

Value Evaluator::MakeMacro(std::string_view name, const std::vector<Parameter>& parameters,
                           const Block& body) {
  macro_scopes_.push_back(scope_);
  const auto call = [this, scope = scope_, name, &parameters, &body](Runtime&,
                                                                     const Arguments& arguments) {
    return CallMacro(scope, name, parameters, body, arguments);
  };
  return MakeCallable(rt_, std::string(name), Value(), call);
}

Value Evaluator::CallMacro(const std::shared_ptr<Scope>& scope, std::string_view name,
                           const std::vector<Parameter>& parameters, const Block& body,
                           const Arguments& arguments) {
  const ScopeGuard guard(*this, scope);
  BindParameters(name, parameters, arguments);
  return Capture(body);
}

// Binds parameters in the current scope. Surplus arguments become `varargs` and `kwargs`; `caller`
// is the body of a call block.
void Evaluator::BindParameters(std::string_view name, const std::vector<Parameter>& parameters,
                               const Arguments& arguments) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    rt_.Step();
    const Parameter& parameter = parameters[i];
    const Value* given = i < arguments.positional.size() ? &arguments.positional[i] : nullptr;
    for (const auto& [named, value] : arguments.named) {
      if (named != parameter.name) continue;
      if (given != nullptr) {
        rt_.Fail("macro '" + std::string(name) + "' got argument '" + named + "' twice");
      }
      given = &value;
    }
    Value value = given != nullptr ? *given
                  : parameter.fallback != nullptr
                      ? Eval(*parameter.fallback)
                      : Value::MakeUndefined("parameter '" + parameter.name + "' was not provided");
    Assign(parameter.name, std::move(value));
  }

  std::vector<Value> surplus;
  for (size_t i = parameters.size(); i < arguments.positional.size(); ++i) {
    surplus.push_back(arguments.positional[i]);
  }
  Assign("varargs", MakeList(rt_, std::move(surplus), ListKind::kTuple));
  DictBuilder unknown(rt_);
  Value caller = Value::MakeUndefined("no caller defined");
  for (const auto& [named, value] : arguments.named) {
    const bool known = std::any_of(parameters.begin(), parameters.end(),
                                   [&n = named](const Parameter& p) { return p.name == n; });
    if (known) continue;
    if (named == "caller") {
      caller = value;
    } else {
      unknown.Set(arguments.NameAsValue(named), value);
    }
  }
  Assign("kwargs", unknown.Take());
  if (std::none_of(parameters.begin(), parameters.end(),
                   [](const Parameter& p) { return p.name == "caller"; })) {
    Assign("caller", std::move(caller));
  }
}

}  // namespace tandem::engine
