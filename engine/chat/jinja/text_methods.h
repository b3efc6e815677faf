#pragma once

#include <map>
#include <string_view>

#include "engine/chat/jinja/value.h"

// The methods of strings. Internal to FindMethod.
namespace tandem::engine {

using Method = Value (*)(Runtime& rt, const Value& self, const Arguments& arguments);
using MethodTable = std::map<std::string_view, Method>;

const MethodTable& TextMethods();

}  // namespace tandem::engine
