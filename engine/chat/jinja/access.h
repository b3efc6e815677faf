#pragma once

#include <string_view>

#include "engine/chat/jinja/value.h"

namespace tandem::engine {

// value.name: attributes and methods first, then the item of that name. Undefined if neither
// exists; faults if `value` is undefined.
Value GetAttribute(Runtime& rt, const Value& value, std::string_view name);

// value[key]: the item first, then the attribute of that name.
Value GetItem(Runtime& rt, const Value& value, const Value& key);

// value[start:stop:step]; none means absent.
Value GetSlice(Runtime& rt, const Value& value, const Value& start, const Value& stop,
               const Value& step);

// Resolves "a.b.0", the form of filters' attribute= arguments.
Value GetPath(Runtime& rt, const Value& value, const Value& path);

// The methods of strings, dicts and lists that a template may call, bound to `object`; nullopt for
// an unknown method. No method changes its object.
std::optional<Value> FindMethod(Runtime& rt, const Value& object, std::string_view name);

}  // namespace tandem::engine
