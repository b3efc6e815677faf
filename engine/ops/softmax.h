#pragma once

#include <cstdint>

#include "engine/ops/ops_context.h"

namespace tandem::engine {

// lse[r] = log(sum(exp(logits[r, :]))) with fixed vocabulary blocks of 4,096. Both the server's
// log-probabilities and the training loss use it: log-probability of token t = logits[t] - lse.
void LogSumExp(OpsContext& ops, const float* logits, int64_t rows, int64_t vocab, int64_t ld,
               float* lse);

}  // namespace tandem::engine
