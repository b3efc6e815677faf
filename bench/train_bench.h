#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace tandem::bench {

// `tandem bench train`: optimiser steps on random tokens, in tokens/s and as model-FLOP
// utilisation. With a peer's command (which prints "… N tokens/s") the two alternate and the ratio
// is printed.
struct TrainBenchOptions {
  std::string family = "minigpt";
  int64_t n_layers = 8;
  int64_t hidden_dim = 256;
  int64_t ffn_dim = 256;
  int64_t n_heads = 8;
  int64_t vocab_size = 50257;
  int64_t context = 256;
  int64_t batch = 16;
  bool bf16 = true;
  int threads = 0;
  int rounds = 5;
  int64_t steps = 3;  // per round, after one that is not counted
  std::string peer;   // empty: none
};

int RunTrainBench(std::ostream& out, const TrainBenchOptions& options);

}  // namespace tandem::bench
