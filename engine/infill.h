#pragma once

#include <optional>

#include "engine/api/infill_tokens.h"
#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {

// The infill tokens that the tokenizer's files name, or else those of a known spelling. nullopt:
// the model cannot fill in. REQUIRES: files.tokenizer.
std::optional<InfillTokens> FindInfillTokens(const TokenizerFiles& files);

}  // namespace tandem::engine
