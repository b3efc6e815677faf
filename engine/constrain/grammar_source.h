#pragma once

#include <string>

namespace tandem::engine {

// A grammar as text, ready to compile. The functions of json_schema.h and text_grammars.h make it
// from a client's request, and check it there.
struct GrammarSource {
  enum class Kind { kJsonSchema, kRegex, kLark };
  Kind kind = Kind::kJsonSchema;
  std::string text;  // UTF-8
};

}  // namespace tandem::engine
