#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>

#include "engine/kernels/block_formats.h"

namespace tandem::bench {

// `tandem bench step`: what one engine step costs without a server. Three figures, each as a ratio
// against a loop measured in the same round:
//   prefill    FLOPs of the layers' matrices / the peak of products in the weights' type
//   one stream bytes of all weights read per token / the read loop
//   batch      tokens/s of `batch` sequences / tokens/s of one
//   adapters   a step of `batch` sequences by `adapters` adapters / the same by the base alone
struct StepBenchOptions {
  std::filesystem::path model;      // Hugging Face directory; empty: a random Llama-3.2-1B shape
  std::filesystem::path cache_dir;  // of packed weights, and of the random model
  engine::BlockFormat block = engine::BlockFormat::kNone;  // weights rounded to it
  int threads = 0;                                         // 0: one per physical core
  int rounds = 5;
  int64_t prompt_tokens = 512;
  int64_t batch = 16;
  int64_t decode_steps = 8;  // per round and batch size
  int64_t adapters = 0;      // of all linear layers, each with matrices of its own; 0: none
  int64_t adapter_rank = 16;
};

int RunStepBench(std::ostream& out, const StepBenchOptions& options);

}  // namespace tandem::bench
