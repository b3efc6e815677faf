#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "engine/ops/attention.h"

namespace tandem::engine {

// Rope scaling of Llama 3.1 (`rope_type: llama3`); factor 1 means none.
struct RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_positions = 0;
};

// What a family's config.json says, in one vocabulary. Immutable after parsing.
struct ModelConfig {
  std::string family;  // "llama", "minigpt"
  int64_t n_layers = 0;
  int64_t hidden_dim = 0;
  int64_t ffn_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_context_len = 0;
  float norm_eps = 1e-5f;
  AttentionSpec attention;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  Activation activation = Activation::kSilu;
  bool tied_embeddings = false;
  float dropout = 0;  // training only
  std::vector<TokenId> eos_tokens;
  TokenId bos_token = -1;
};

}  // namespace tandem::engine
