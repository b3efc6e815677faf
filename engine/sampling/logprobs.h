#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/ids.h"
#include "engine/sampling/select.h"

namespace tandem::engine {

// A token's log-probability and rank in the raw distribution of its row. `lse` is the row's
// log-sum-exp (engine/ops LogSumExp), so serving and training report the same bits.
struct ScoredToken {
  float logprob = 0;
  int64_t rank = 0;                            // 1 = best; ties by id
  std::vector<std::pair<TokenId, float>> top;  // the `n_top` best, best first
};

// Memory that one worker reuses from row to row.
struct ScoreScratch {
  std::vector<float> run_maxima;
  std::vector<Candidate> buffer;
};

ScoredToken ScoreToken(std::span<const float> logits, float lse, TokenId token, int n_top,
                       ScoreScratch& scratch);

}  // namespace tandem::engine
