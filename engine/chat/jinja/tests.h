#pragma once

#include <string_view>

#include "engine/chat/jinja/value.h"

namespace tandem::engine {

// value is name(arguments)
using TestFunction = bool (*)(Runtime& rt, const Value& input, const Arguments& arguments);

// Null for an unknown test.
TestFunction FindTest(std::string_view name);
// Throws kUnsupported with the current position: the template uses an unknown test.
[[noreturn]] void FailUnknownTest(const Runtime& rt, std::string_view name);

}  // namespace tandem::engine
