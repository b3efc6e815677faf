#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "engine/constrain/grammar_source.h"

namespace tandem::engine {

// The white space between the parts of a JSON answer. Neither form holds newlines unless the
// client's pattern does, so that an aimless model still ends.
struct JsonSpacing {
  bool is_compact = false;               // none; else at most one space after ':' and ','
  std::optional<std::string> pattern{};  // a regex of white space alone, allowed between all parts
};

// A grammar of the JSON texts that the schema allows, members in the order of `properties`.
// Keywords that the grammar cannot hold throw kInvalidArgument (reason unsupported_schema) with
// the keyword's path as param; malformed ones have the reason invalid_schema. `oneOf` means anyOf.
// Unknown keywords and unknown formats are annotations. `param` is the schema's path.
GrammarSource SchemaGrammar(const nlohmann::ordered_json& schema, const std::string& param,
                            const JsonSpacing& spacing = {});
// A grammar of one JSON object of any content.
GrammarSource JsonObjectGrammar(const JsonSpacing& spacing = {});

// Throws kInvalidArgument unless the pattern consists of white space characters, classes of them,
// and quantifiers. Returns it with \s written out as JSON's four characters.
std::string CheckedSpacing(const std::string& pattern, const std::string& param);

}  // namespace tandem::engine
