#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "engine/ops/attention.h"

namespace tandem::engine {

enum class RopeKind : uint8_t { kPlain, kLinear, kLlama3, kYarn };

// How a rope was stretched over longer contexts (`rope_type`). Fields beyond `factor` belong to the
// kinds in their comments.
struct RopeScaling {
  RopeKind kind = RopeKind::kPlain;
  double factor = 1;
  int64_t original_max_positions = 0;  // kLlama3, kYarn
  double low_freq_factor = 1;          // kLlama3
  double high_freq_factor = 4;         // kLlama3
  double beta_fast = 32;               // kYarn: dimensions with more turns in the original
  double beta_slow = 1;                // context are kept; those with fewer than this are slowed
  double attention_factor = 1;         // kYarn: multiplies cosine and sine
  bool truncate = true;                // kYarn: ramp borders are whole dimensions
};

// The content of a family's config.json in one vocabulary. Immutable after parsing.
struct ModelConfig {
  std::string family;  // a name of families.cc
  int64_t n_layers = 0;
  int64_t hidden_dim = 0;
  int64_t ffn_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_context_len = 0;
  float norm_eps = 1e-5f;
  AttentionSpec attention;
  // By layer: whether attention.window applies. Empty: it applies to all layers.
  std::vector<bool> windowed_layers;
  // Gemma's query_pre_attn_scalar: attention.scale is 1 / sqrt(query_scalar). 0: head_dim.
  double query_scalar = 0;
  float logit_cap = 0;  // cap * tanh(logit / cap); 0 = off
  double rope_theta = 10000;
  double local_rope_theta = 10000;  // of windowed layers in families with two ropes
  RopeScaling rope_scaling;
  Activation activation = Activation::kSilu;
  bool attention_bias = false;  // of q, k, v and o
  bool mlp_bias = false;
  bool tied_embeddings = false;
  float dropout = 0;            // of residual branches; training only
  float embedding_dropout = 0;  // training only
  std::vector<TokenId> eos_tokens;
  TokenId bos_token = -1;

  AttentionSpec LayerAttention(int64_t layer) const {
    AttentionSpec spec = attention;
    if (!windowed_layers.empty() && !windowed_layers[static_cast<size_t>(layer)]) spec.window = 0;
    return spec;
  }
};

}  // namespace tandem::engine
