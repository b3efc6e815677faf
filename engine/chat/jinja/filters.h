#pragma once

#include <string_view>

#include "engine/chat/jinja/value.h"

namespace tandem::engine {

// value | name(arguments)
using FilterFunction = Value (*)(Runtime& rt, const Value& input, const Arguments& arguments);

// Null if there is no such filter.
FilterFunction FindFilter(std::string_view name);
// Throws kUnsupported with the present position: a template applies a filter that does not exist.
[[noreturn]] void FailUnknownFilter(const Runtime& rt, std::string_view name);

}  // namespace tandem::engine
