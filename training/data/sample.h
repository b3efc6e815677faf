#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::training {

// One training text as tokens. trained[i] says whether predicting tokens[i] counts; tokens[0] is
// never predicted. Every format ends here (text today, chat messages later).
struct Sample {
  std::vector<TokenId> tokens;
  std::vector<uint8_t> trained;  // as long as tokens

  void Append(const std::vector<TokenId>& ids, bool train) {
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    trained.insert(trained.end(), ids.size(), train ? 1 : 0);
  }
};

}  // namespace tandem::training
