#pragma once

#include <string_view>

#include "engine/chat/jinja/value.h"

namespace tandem::engine {

// value is name(arguments)
using TestFunction = bool (*)(Runtime& rt, const Value& input, const Arguments& arguments);

// Null if there is no such test.
TestFunction FindTest(std::string_view name);
// Throws kUnsupported with the present position: a template asks a test that does not exist.
[[noreturn]] void FailUnknownTest(const Runtime& rt, std::string_view name);

}  // namespace tandem::engine
