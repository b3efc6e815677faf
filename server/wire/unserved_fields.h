#pragma once

#include <span>
#include <string_view>

#include "server/wire/field_reader.h"

namespace tandem::server {

enum class GenerationRoute { kChat, kCompletions };

// A request field of OpenAI, vLLM, SGLang, llama.cpp or TGI that changes an answer and that this
// server does not implement. Fields that only tune another server's speed or output format are not
// listed: the server ignores them and names them in `x-ignored-params`.
struct UnservedField {
  std::string_view name;
  // A JSON array of the values that request the default behavior; the server accepts these.
  std::string_view neutral_values;
  std::string_view advice;  // the client's alternative; follows "is not supported: "
  bool in_chat = true;
  bool in_completions = true;
};

// All such fields, in the order in which faults are reported.
std::span<const UnservedField> UnservedFields();

// Throws kUnsupported (`unsupported_parameter`) for the first listed field with a non-neutral
// value. JSON null is neutral for every field.
void RefuseUnservedFields(FieldReader& reader, GenerationRoute route);

}  // namespace tandem::server
