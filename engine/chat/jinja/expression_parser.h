#pragma once

#include <vector>

#include "engine/chat/jinja/ast.h"
#include "engine/chat/jinja/token_stream.h"

namespace tandem::engine {

// Whether `a if b` belongs to the expression; kNo inside statements with their own `if`.
enum class Conditional { kYes, kNo };

// Each function parses from the current token to the first that does not belong to it.
ExprPtr ParseExpression(TokenStream& in);
ExprPtr ParseTuple(TokenStream& in, Conditional conditional = Conditional::kYes);  // a or a, b
ExprPtr ParseFilter(TokenStream& in);                    // name(arguments), without an input
std::vector<ExprPtr> ParseFilterChain(TokenStream& in);  // | a | b, without an input

}  // namespace tandem::engine
