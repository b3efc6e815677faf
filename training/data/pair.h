#pragma once

#include <cstdint>

#include "training/data/sample.h"

namespace tandem::training {

// Joins two answers into one sample. A prompt, the tokens before the learned ones, keeps its last
// `max_prompt_tokens` (0: all). Throws kInvalidArgument when both answers have the same tokens.
Sample JoinPair(Sample chosen, Sample rejected, int64_t max_prompt_tokens);

}  // namespace tandem::training
