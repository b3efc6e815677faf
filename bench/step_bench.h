#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>

#include "engine/kernels/block_formats.h"

namespace tandem::bench {

// `tandem bench step`: cost of an engine step without a server. Each figure is a ratio to a loop
// measured in the same round:
//   prefill    FLOPs of the layers' matrices / peak of products in the weights' type
//   embeddings speed of the same prompt as an embedding / prefill, pooled by the last state and by
//              the mean (which needs the last layer's MLP for every row)
//   one stream bytes of all weights read per token / the read loop
//   batch      tokens/s of `batch` sequences / tokens/s of one
//   adapters   a step of `batch` sequences with `adapters` adapters / the same with the base alone
struct StepBenchOptions {
  static constexpr const char* kRandomShape = "Llama-3.2-1B";
  std::filesystem::path model;      // Hugging Face directory; empty: random weights of kRandomShape
  std::filesystem::path cache_dir;  // of packed weights and the random model
  engine::BlockFormat block = engine::BlockFormat::kNone;  // weights are rounded to it
  int threads = 0;                                         // 0: one per physical core
  int rounds = 5;
  int64_t prompt_tokens = 512;
  int64_t batch = 16;
  int64_t decode_steps = 8;  // per round and batch size
  int64_t adapters = 0;      // each on all linear layers with its own matrices; 0: none
  int64_t adapter_rank = 16;
};

int RunStepBench(std::ostream& out, const StepBenchOptions& options);

}  // namespace tandem::bench
