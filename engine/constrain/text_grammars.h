#pragma once

#include <span>
#include <string>

#include "engine/constrain/grammar_source.h"

namespace tandem::engine {

// Each checks the text of a client and throws kInvalidArgument with `param`. The grammar itself is
// checked when it compiles.

// The whole answer matches the regular expression: no look-around, no back-references.
GrammarSource RegexGrammar(const std::string& regex, const std::string& param);
// The answer is one of the texts.
GrammarSource ChoiceGrammar(std::span<const std::string> choices, const std::string& param);
// A grammar in llguidance's variant of Lark, with the rule `start`.
GrammarSource LarkGrammar(const std::string& grammar, const std::string& param);

}  // namespace tandem::engine
