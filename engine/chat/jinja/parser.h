#pragma once

#include <string_view>

#include "engine/chat/jinja/ast.h"

namespace tandem::engine {

// Parses a whole template. Throws kInvalidArgument for syntax errors and kUnsupported for
// unsupported parts of Jinja, with line and column. Unknown filters and tests fail when a rendering
// reaches them: many templates have some in branches that are never taken.
Block ParseTemplate(std::string_view source);

}  // namespace tandem::engine
