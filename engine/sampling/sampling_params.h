#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::engine {

// Parameters of a draw, in the order logit_bias -> repetition, presence, frequency -> mask of a
// grammar -> temperature -> top_k -> top_p -> min_p -> draw. The request parser checks the ranges.
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

// A number that requests and, except for penalties of one answer, generation_config.json set.
struct SamplingField {
  const char* name;
  float SamplingParams::*value;
  double min = 0, max = 1;    // of a request
  bool is_positive = false;   // excludes 0
  bool is_penalty = false;    // requests read penalties after all other fields of sampling
  bool is_of_model = true;    // if generation_config.json may set it
  double max_of_model = max;  // in generation_config.json
};
// The list: requests and generation_config.json read these fields from here.
inline constexpr SamplingField kSamplingFields[] = {
    {.name = "temperature", .value = &SamplingParams::temperature, .max = 2, .max_of_model = 100},
    {.name = "top_p", .value = &SamplingParams::top_p},
    {.name = "min_p", .value = &SamplingParams::min_p},
    {.name = "presence_penalty",
     .value = &SamplingParams::presence_penalty,
     .min = -2,
     .max = 2,
     .is_penalty = true,
     .is_of_model = false},
    {.name = "frequency_penalty",
     .value = &SamplingParams::frequency_penalty,
     .min = -2,
     .max = 2,
     .is_penalty = true,
     .is_of_model = false},
    {.name = "repetition_penalty",
     .value = &SamplingParams::repetition_penalty,
     .max = 10,
     .is_positive = true,
     .is_penalty = true},
};

}  // namespace tandem::engine
