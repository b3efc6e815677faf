#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>

#include "engine/api/options.h"

namespace tandem::bench {

// `tandem bench fairness`: how long a first token takes beside other work, over the same alone. Two
// measurements on one engine, in alternating pairs:
//
// - batches: an open loop of interactive requests, with and without batch requests in flight.
//
// - long: one short request, alone and while a long prompt is computed.
struct FairnessBenchOptions {
  std::filesystem::path model;   // Hugging Face directory or GGUF file
  engine::EngineOptions engine;  // the prefix cache is off
  int pairs = 5;
  int64_t requests = 100;      // interactive ones of each run
  double load = 0.3;           // of them alone: the part of the time that one request would take
  int64_t batch_streams = 16;  // batch requests in flight
  int64_t batch_prompt_tokens = 512;
  int64_t short_tokens = 64;  // interactive prompts have half to twice as many
  int64_t long_tokens = 4096;
  int64_t output_tokens = 32;
  uint64_t seed = 1;
};

// Prints milliseconds and ratios, pair by pair. Throws kInvalidArgument when the model's context is
// too short for the prompts.
int RunFairnessBench(std::ostream& out, const FairnessBenchOptions& options);

}  // namespace tandem::bench
