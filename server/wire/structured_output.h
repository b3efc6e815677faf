#pragma once

#include <optional>
#include <string>

#include "engine/constrain/grammar_source.h"
#include "server/wire/field_reader.h"

namespace tandem::server {

// What the answer must be, by one of the request's fields.
struct StructuredOutput {
  engine::GrammarSource source;
  std::string param;  // the field, for errors of compiling
};

// Reads `response_format`, `structured_outputs`, `guided_json`, `guided_regex`, `guided_choice`,
// `guided_grammar` and `json_schema`. Throws for two of them, for what no grammar can hold
// (reasons unsupported_schema and invalid_schema), and in a build without llguidance
// (unsupported_parameter). nullopt: any text.
std::optional<StructuredOutput> ReadStructuredOutput(FieldReader& reader);

}  // namespace tandem::server
