#pragma once

#include <cstdint>
#include <iosfwd>
#include <vector>

#include "engine/tensor/kv_format.h"

namespace tandem::bench {

// `tandem bench attention`: attention of one layer in bf16, without a model.
// Prefill computes a chunk of rows at the end of each depth. Its unit is GFLOP/s against f32's
// peak. Decode computes one row at each depth. Its unit is GB/s of keys and values against the read
// loop. It cycles through more layers than the caches hold.
struct AttentionBenchOptions {
  int threads = 0;       // 0: one per physical core
  double seconds = 0.7;  // per case
  int64_t n_heads = 32;  // the defaults are those of Llama-3.2-1B
  int64_t n_kv_heads = 8;
  int64_t head_dim = 64;
  int64_t rows = 256;  // of a prefilled chunk
  std::vector<int64_t> depths = {512, 8192, 32768};
  engine::KvFormat kv_format = engine::KvFormat::kCompute;
  int64_t cycle_bytes = 400'000'000;  // decode reads at least so many different bytes
};

int RunAttentionBench(std::ostream& out, const AttentionBenchOptions& options);

}  // namespace tandem::bench
