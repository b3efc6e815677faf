#pragma once

#include <string_view>

#include "engine/chat/jinja/value.h"

namespace tandem::engine {

// value.name: attributes and methods first, then the item of that name. Undefined if there is
// neither; faults if `value` itself is undefined.
Value GetAttribute(Runtime& rt, const Value& value, std::string_view name);

// value[key]: the item first, then the attribute of that name.
Value GetItem(Runtime& rt, const Value& value, const Value& key);

// value[start:stop:step]; none means absent.
Value GetSlice(Runtime& rt, const Value& value, const Value& start, const Value& stop,
               const Value& step);

// "a.b.0", as the attribute= arguments of filters spell it.
Value GetPath(Runtime& rt, const Value& value, const Value& path);

// The methods of strings, dicts and lists that a template may call, bound to `object`; nullopt if
// there is no such method. Nothing that changes its object is among them.
std::optional<Value> FindMethod(Runtime& rt, const Value& object, std::string_view name);

// format % arguments, as the string operator and the `format` filter do it.
Value FormatPercent(Runtime& rt, const Text& format, const Arguments& arguments);

}  // namespace tandem::engine
