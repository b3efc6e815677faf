#pragma once

#include <string>

#include "engine/chat/jinja/value.h"

namespace tandem::engine {

// str(value) as Python and Jinja print it; undefined prints nothing.
TextPtr ToText(Runtime& rt, const Value& value);
void AppendText(TextBuilder& out, const Value& value);
// repr(value)
void AppendRepr(TextBuilder& out, const Value& value);

// repr(float): the shortest digits that read back as the same number.
std::string FloatRepr(double value);

// The options of json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // one level's white space; absent: everything on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool from_client = false;  // the white space or a separator is a client's
};

// Writes `value` as json.dumps would. Everything inside a client's array or object, punctuation
// included, is the client's. In the template's own containers only the client's strings are.
void AppendJson(TextBuilder& out, const Value& value, const JsonStyle& style);

}  // namespace tandem::engine
