#pragma once

#include <string_view>

#include "engine/chat/jinja_ast.h"

namespace tandem::engine {

// Parses a whole template. Throws kInvalidArgument for syntax errors and kUnsupported for parts of
// Jinja that this language leaves out and for unknown filters and tests, with line and column.
Block ParseTemplate(std::string_view source);

}  // namespace tandem::engine
