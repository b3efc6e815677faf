#include "engine/chat/jinja/tests.h"

#include <map>

#include "engine/chat/jinja/filters.h"
#include "engine/chat/jinja/operators.h"
#include "engine/chat/jinja/print.h"

namespace tandem::engine {
namespace {

using Type = Value::Type;

void NoArguments(Runtime& rt, const Arguments& arguments) { Bind(rt, arguments, "the test", {}); }

// The argument of a comparing test.
const Value& Other(Runtime& rt, const Arguments& arguments) {
  return *Bind(rt, arguments, "the test", {"other"}, 1)[0];
}

template <Type type>
bool IsType(Runtime& rt, const Value& input, const Arguments& arguments) {
  NoArguments(rt, arguments);
  return input.is(type);
}

bool IsDefined(Runtime& rt, const Value& input, const Arguments& arguments) {
  NoArguments(rt, arguments);
  return !input.is_undefined();
}

bool IsNumber(Runtime& rt, const Value& input, const Arguments& arguments) {
  NoArguments(rt, arguments);
  return input.is_number();
}

bool IsInteger(Runtime& rt, const Value& input, const Arguments& arguments) {
  NoArguments(rt, arguments);
  return input.is(Value::Type::kInt) || input.is(Value::Type::kWideInt);
}

bool IsIterable(Runtime& rt, const Value& input, const Arguments& arguments) {
  NoArguments(rt, arguments);
  return input.is_undefined() || input.is(Type::kText) || input.is(Type::kList) ||
         input.is(Type::kDict);
}

// Jinja tests for a length and items, which strings and dicts have too.
bool IsSequence(Runtime& rt, const Value& input, const Arguments& arguments) {
  if (input.is(Type::kList) && input.list().kind == ListKind::kGenerator) return false;
  return IsIterable(rt, input, arguments);
}

template <bool wanted>
bool IsBool(Runtime& rt, const Value& input, const Arguments& arguments) {
  NoArguments(rt, arguments);
  return input.is(Type::kBool) && input.as_bool() == wanted;
}

Value Remainder(Runtime& rt, const Value& input, const Value& divisor) {
  if (!input.is_number())
    rt.Fail("the tested value must be a number, got '" + TypeName(input) + "'");
  return Calculate(rt, BinaryOp::kModulo, input, divisor);
}

bool IsOdd(Runtime& rt, const Value& input, const Arguments& arguments) {
  NoArguments(rt, arguments);
  return Remainder(rt, input, Value::Int(2)).number() == 1;
}

bool IsEven(Runtime& rt, const Value& input, const Arguments& arguments) {
  NoArguments(rt, arguments);
  return Remainder(rt, input, Value::Int(2)).number() == 0;
}

bool IsDivisibleBy(Runtime& rt, const Value& input, const Arguments& arguments) {
  const Value& divisor = Other(rt, arguments);
  if (!divisor.is_number())
    rt.Fail("the divisor must be a number, got '" + TypeName(divisor) + "'");
  return Remainder(rt, input, divisor).number() == 0;
}

bool IsEqual(Runtime& rt, const Value& input, const Arguments& arguments) {
  return Equal(rt, input, Other(rt, arguments));
}
bool IsNotEqual(Runtime& rt, const Value& input, const Arguments& arguments) {
  return !Equal(rt, input, Other(rt, arguments));
}
bool IsLess(Runtime& rt, const Value& input, const Arguments& arguments) {
  return Less(rt, input, Other(rt, arguments));
}
bool IsGreater(Runtime& rt, const Value& input, const Arguments& arguments) {
  return Less(rt, Other(rt, arguments), input);
}
bool IsLessOrEqual(Runtime& rt, const Value& input, const Arguments& arguments) {
  return IsLess(rt, input, arguments) || IsEqual(rt, input, arguments);
}
bool IsGreaterOrEqual(Runtime& rt, const Value& input, const Arguments& arguments) {
  return IsGreater(rt, input, arguments) || IsEqual(rt, input, arguments);
}
bool IsIn(Runtime& rt, const Value& input, const Arguments& arguments) {
  return Contains(rt, Other(rt, arguments), input);
}
bool IsSameAs(Runtime& rt, const Value& input, const Arguments& arguments) {
  return input.SameObject(Other(rt, arguments));
}

template <bool (*wanted)(char32_t), bool (*other)(char32_t)>
bool HasCase(Runtime& rt, const Value& input, const Arguments& arguments) {
  NoArguments(rt, arguments);
  const TextPtr text = ToText(rt, input);
  rt.Work(text->size());
  return HasOnlyCase(text->bytes(), wanted, other);
}

bool IsFilter(Runtime& rt, const Value& input, const Arguments& arguments) {
  NoArguments(rt, arguments);
  return input.is(Type::kText) && FindFilter(input.text()->bytes()) != nullptr;
}

bool IsTest(Runtime& rt, const Value& input, const Arguments& arguments) {
  NoArguments(rt, arguments);
  return input.is(Type::kText) && FindTest(input.text()->bytes()) != nullptr;
}

}  // namespace

TestFunction FindTest(std::string_view name) {
  static const std::map<std::string_view, TestFunction> tests = {
      {"!=", IsNotEqual},
      {"<", IsLess},
      {"<=", IsLessOrEqual},
      {"==", IsEqual},
      {">", IsGreater},
      {">=", IsGreaterOrEqual},
      {"boolean", IsType<Type::kBool>},
      {"callable", IsType<Type::kCallable>},
      {"defined", IsDefined},
      {"divisibleby", IsDivisibleBy},
      {"eq", IsEqual},
      {"equalto", IsEqual},
      {"even", IsEven},
      {"false", IsBool<false>},
      {"filter", IsFilter},
      {"float", IsType<Type::kFloat>},
      {"ge", IsGreaterOrEqual},
      {"greaterthan", IsGreater},
      {"gt", IsGreater},
      {"in", IsIn},
      {"integer", IsInteger},
      {"iterable", IsIterable},
      {"le", IsLessOrEqual},
      {"lessthan", IsLess},
      {"lower", HasCase<IsLower, IsUpper>},
      {"lt", IsLess},
      {"mapping", IsType<Type::kDict>},
      {"ne", IsNotEqual},
      {"none", IsType<Type::kNone>},
      {"number", IsNumber},
      {"odd", IsOdd},
      {"sameas", IsSameAs},
      {"sequence", IsSequence},
      {"string", IsType<Type::kText>},
      {"test", IsTest},
      {"true", IsBool<true>},
      {"undefined", IsType<Type::kUndefined>},
      {"upper", HasCase<IsUpper, IsLower>},
  };
  const auto it = tests.find(name);
  return it == tests.end() ? nullptr : it->second;
}

void FailUnknownTest(const Runtime& rt, std::string_view name) {
  rt.FailUnsupported("unknown test '" + std::string(name) + "'");
}

}  // namespace tandem::engine
