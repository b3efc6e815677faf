#pragma once

#include <cstdint>

#include "training/data/sample.h"

namespace tandem::training {

// Two answers as one sample. Of prompts (all before what is learned) with more than
// `max_prompt_tokens` (0: any number) the last ones are kept. Throws kInvalidArgument when the
// tokens are the same.
Sample JoinPair(Sample chosen, Sample rejected, int64_t max_prompt_tokens);

}  // namespace tandem::training
