#pragma once

#include <vector>

#include "engine/chat/jinja/ast.h"
#include "engine/chat/jinja/token_stream.h"

namespace tandem::engine {

// Whether `a if b` belongs to the expression: not where a statement has an `if` of its own.
enum class Conditional { kYes, kNo };

// Each parses from the present token to the first that does not belong to it.
ExprPtr ParseExpression(TokenStream& in);
ExprPtr ParseTuple(TokenStream& in, Conditional conditional = Conditional::kYes);  // a or a, b
ExprPtr ParseFilter(TokenStream& in);                    // name(arguments), without an input
std::vector<ExprPtr> ParseFilterChain(TokenStream& in);  // | a | b, without an input

}  // namespace tandem::engine
