#pragma once

#include <vector>

#include "engine/base/ids.h"

namespace tandem::engine {

// Control tokens of a model that writes the text between two others. Its prompt is `prefix`, the
// text before, `suffix`, the text after, `middle`.
struct InfillTokens {
  TokenId prefix = 0;
  TokenId suffix = 0;
  TokenId middle = 0;
  std::vector<TokenId> ends;  // end the text in between, besides the model's end tokens
};

}  // namespace tandem::engine
