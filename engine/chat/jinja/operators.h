#pragma once

#include "engine/chat/jinja/ast.h"

namespace tandem::engine {

// Python's arithmetic: 7 // -2 is -4, 7 % -2 is -1, 1 / 2 is 0.5. + and * also work on strings and
// lists, % formats strings. Integer overflow beyond 64 bits is a fault.
Value Calculate(Runtime& rt, BinaryOp op, const Value& left, const Value& right);
Value Negate(Runtime& rt, const Value& value);
bool CompareValues(Runtime& rt, CompareOp op, const Value& left, const Value& right);

}  // namespace tandem::engine
