#pragma once

#include <string_view>

#include "engine/chat/jinja/value.h"

namespace tandem::engine {

// value | name(arguments)
using FilterFunction = Value (*)(Runtime& rt, const Value& input, const Arguments& arguments);

// Null for an unknown filter.
FilterFunction FindFilter(std::string_view name);
// Throws kUnsupported with the current position: the template applies an unknown filter.
[[noreturn]] void FailUnknownFilter(const Runtime& rt, std::string_view name);

}  // namespace tandem::engine
