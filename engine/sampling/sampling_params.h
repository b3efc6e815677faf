#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::engine {

// Parameters of a draw, in the order logit_bias -> repetition, presence, frequency -> temperature
// -> top_k -> top_p -> min_p -> draw. The request parser checks the ranges.
struct SamplingParams {
  float temperature = 1;                              // < 1e-5 is greedy
  float top_p = 1;                                    // 0 is greedy
  float min_p = 0;                                    // 1 is greedy
  int32_t top_k = 0;                                  // <= 0: off
  float presence_penalty = 0;                         // over generated tokens
  float frequency_penalty = 0;                        // over generated tokens
  float repetition_penalty = 1;                       // over prompt and generated tokens
  uint64_t seed = 0;                                  // always set: the request's or a random seed
  std::vector<std::pair<TokenId, float>> logit_bias;  // -100 bans; +100 restricts to the +100 set

  bool greedy() const { return temperature < 1e-5f || top_p <= 0 || min_p >= 1 || top_k == 1; }
};

}  // namespace tandem::engine
