#include "engine/chat/jinja/operators.h"

#include <cmath>

#include "engine/chat/jinja/percent_format.h"

namespace tandem::engine {
namespace {

const char* Symbol(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "+";
    case BinaryOp::kSubtract:
      return "-";
    case BinaryOp::kMultiply:
      return "*";
    case BinaryOp::kDivide:
      return "/";
    case BinaryOp::kFloorDivide:
      return "//";
    case BinaryOp::kModulo:
      return "%";
    case BinaryOp::kPower:
      return "**";
  }
  return "?";
}

[[noreturn]] void FailOverflow(Runtime& rt) { rt.Fail("the integer does not fit into 64 bits"); }

int64_t FloorDivide(Runtime& rt, int64_t a, int64_t b) {
  if (b == -1) {
    if (a == INT64_MIN) FailOverflow(rt);
    return -a;
  }
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t FloorModulo(int64_t a, int64_t b) {
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double FloorModulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

// As in Python: the floor of the exact quotient; a / b may round up to the next integer.
double FloorDivide(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;  // an integer except for rounding
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value IntegerPower(Runtime& rt, int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) rt.Fail("0 cannot be raised to a negative power");
    return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t power = 1;
  while (true) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(power, base, &power)) FailOverflow(rt);
    exponent >>= 1;
    if (exponent == 0) return Value::Int(power);
    if (__builtin_mul_overflow(base, base, &base)) FailOverflow(rt);
  }
}

Value CalculateIntegers(Runtime& rt, BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case BinaryOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) FailOverflow(rt);
      return Value::Int(result);
    case BinaryOp::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) FailOverflow(rt);
      return Value::Int(result);
    case BinaryOp::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) FailOverflow(rt);
      return Value::Int(result);
    case BinaryOp::kPower:
      return IntegerPower(rt, a, b);
    default:
      break;
  }
  if (b == 0) rt.Fail("division by zero");
  if (op == BinaryOp::kFloorDivide) return Value::Int(FloorDivide(rt, a, b));
  if (op == BinaryOp::kModulo) return Value::Int(FloorModulo(a, b));
  return Value::Float(static_cast<double>(a) / static_cast<double>(b));
}

Value CalculateFloats(Runtime& rt, BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return Value::Float(a + b);
    case BinaryOp::kSubtract:
      return Value::Float(a - b);
    case BinaryOp::kMultiply:
      return Value::Float(a * b);
    case BinaryOp::kPower: {
      const double power = std::pow(a, b);
      if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) rt.Fail("the power is not real");
      return Value::Float(power);
    }
    default:
      break;
  }
  if (b == 0) rt.Fail("division by zero");
  if (op == BinaryOp::kFloorDivide) return Value::Float(FloorDivide(a, b));
  if (op == BinaryOp::kModulo) return Value::Float(FloorModulo(a, b));
  return Value::Float(a / b);
}

Value AddLists(Runtime& rt, const List& a, const List& b) {
  rt.Work((a.items.size() + b.items.size()) * sizeof(Value));
  std::vector<Value> items = a.items;
  items.insert(items.end(), b.items.begin(), b.items.end());
  return MakeList(rt, std::move(items), a.kind, a.from_client && b.from_client);
}

Value RepeatList(Runtime& rt, const List& list, int64_t count) {
  std::vector<Value> items;
  if (!list.items.empty()) {
    for (int64_t i = 0; i < count; ++i) {
      rt.Step();
      rt.Work(list.items.size() * sizeof(Value));
      items.insert(items.end(), list.items.begin(), list.items.end());
    }
  }
  return MakeList(rt, std::move(items), list.kind, list.from_client);
}

std::optional<Value> RepeatSequence(Runtime& rt, const Value& sequence, const Value& count) {
  if (!count.is_integral()) return std::nullopt;
  if (sequence.is(Value::Type::kText)) {
    return Value::Of(Repeat(rt, *sequence.text(), count.integral()));
  }
  if (sequence.is(Value::Type::kList)) return RepeatList(rt, sequence.list(), count.integral());
  return std::nullopt;
}

Value Format(Runtime& rt, const Text& format, const Value& value) {
  Arguments arguments;
  if (value.is(Value::Type::kList) && value.list().kind == ListKind::kTuple) {
    arguments.positional = value.list().items;
  } else {
    arguments.positional.push_back(value);
  }
  return FormatPercent(rt, format, arguments);
}

std::optional<Value> CalculateSequences(Runtime& rt, BinaryOp op, const Value& left,
                                        const Value& right) {
  const bool text = left.is(Value::Type::kText);
  if (op == BinaryOp::kAdd && text && right.is(Value::Type::kText)) {
    TextBuilder out(rt);
    out.Append(*left.text());
    out.Append(*right.text());
    return Value::Of(out.Take());
  }
  if (op == BinaryOp::kAdd && left.is(Value::Type::kList) && right.is(Value::Type::kList) &&
      left.list().kind == right.list().kind && left.list().kind != ListKind::kGenerator) {
    return AddLists(rt, left.list(), right.list());
  }
  if (op == BinaryOp::kModulo && text) return Format(rt, *left.text(), right);
  if (op != BinaryOp::kMultiply) return std::nullopt;
  std::optional<Value> repeated = RepeatSequence(rt, left, right);
  return repeated.has_value() ? repeated : RepeatSequence(rt, right, left);
}

}  // namespace

Value Calculate(Runtime& rt, BinaryOp op, const Value& left, const Value& right) {
  RequireDefined(rt, left);
  RequireDefined(rt, right);
  if (left.is_integral() && right.is_integral()) {
    return CalculateIntegers(rt, op, left.integral(), right.integral());
  }
  if (left.is_number() && right.is_number()) {
    if (left.is(Value::Type::kWideInt) || right.is(Value::Type::kWideInt)) FailOverflow(rt);
    return CalculateFloats(rt, op, left.number(), right.number());
  }
  if (std::optional<Value> result = CalculateSequences(rt, op, left, right)) return *result;
  rt.Fail(std::string("'") + Symbol(op) + "' is not supported between '" + TypeName(left) +
          "' and '" + TypeName(right) + "'");
}

Value Negate(Runtime& rt, const Value& value) {
  RequireDefined(rt, value);
  if (value.is(Value::Type::kFloat)) return Value::Float(-value.as_float());
  if (value.is(Value::Type::kWideInt)) FailOverflow(rt);
  const int64_t number = RequireInt(rt, value, "the operand of '-'");
  if (number == INT64_MIN) FailOverflow(rt);
  return Value::Int(-number);
}

bool CompareValues(Runtime& rt, CompareOp op, const Value& left, const Value& right) {
  switch (op) {
    case CompareOp::kEqual:
      return Equal(rt, left, right);
    case CompareOp::kNotEqual:
      return !Equal(rt, left, right);
    case CompareOp::kLess:
      return Less(rt, left, right);
    case CompareOp::kLessEqual:
      return Less(rt, left, right) || Equal(rt, left, right);
    case CompareOp::kGreater:
      return Less(rt, right, left);
    case CompareOp::kGreaterEqual:
      return Less(rt, right, left) || Equal(rt, left, right);
    case CompareOp::kIn:
      return Contains(rt, right, left);
    case CompareOp::kNotIn:
      return !Contains(rt, right, left);
  }
  return false;
}

}  // namespace tandem::engine
