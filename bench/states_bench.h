#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>

#include "engine/api/options.h"

namespace tandem::bench {

// `tandem bench states`: what snapshots of recurrent states cost and bring. Two engines serve one
// model in this process, one with the prefix cache and so with snapshots, one without.
//
// - cost: `streams` requests of random prompts together, in alternating pairs. Reported are the
//   decode time and the prompt time with snapshots over those without.
//
// - reuse: the part of tokens with an earlier prompt that is not computed again: by the second and
//   the third prompt with a common beginning, by a repeated prompt and by the next turn of a chat.
struct StatesBenchOptions {
  std::filesystem::path model;   // Hugging Face directory or GGUF file
  engine::EngineOptions engine;  // prefix_cache is set by the bench
  int pairs = 5;
  int64_t streams = 1;
  int64_t prompt_tokens = 512;
  int64_t output_tokens = 128;
  int64_t shared_tokens = 1200;  // of the common beginning
  uint64_t seed = 1;
};

// Prints milliseconds, ratios and shares. Throws kInvalidArgument when the model's context is too
// short for the prompts.
int RunStatesBench(std::ostream& out, const StatesBenchOptions& options);

}  // namespace tandem::bench
