#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>

namespace tandem::bench {

// `tandem bench train`: optimiser steps on random tokens, in tokens/s and model-FLOP utilisation,
// which counts only necessary products, not recomputation. With a peer's command (which prints "… N
// tokens/s") the two alternate and the ratio is printed.
struct TrainBenchOptions {
  std::filesystem::path model;      // model to train; empty: the shape below
  std::filesystem::path cache_dir;  // for packed weights of `model` as the base of adapters
  int64_t lora_rank = 0;  // rank of adapters on all linear layers of `model`; 0: trains its weights
  static constexpr const char* kFamilies = "minigpt, gpt2 or llama";
  std::string family = "minigpt";  // one of kFamilies
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
  int64_t steps = 3;  // per round, after an uncounted one
  std::string peer;   // empty: none
};

int RunTrainBench(std::ostream& out, const TrainBenchOptions& options);

}  // namespace tandem::bench
