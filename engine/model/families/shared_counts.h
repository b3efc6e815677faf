#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/model/families/config.h"

namespace tandem::engine {

// What ranks divide when they share the matrices of a model: the heads of attention and the widths
// of feed-forward layers. A configuration with these counts divided by n describes one of n equal
// parts of every layer; its norms, embeddings and head are whole.
struct SharedCount {
  const char* what;  // "heads (num_attention_heads)"
  int64_t* count;    // in the configuration
};
inline std::vector<SharedCount> SharedCounts(ModelConfig& config) {
  std::vector<SharedCount> counts;
  const auto add_heads = [&counts](AttentionSpec& attention) {
    counts.push_back({"heads (num_attention_heads)", &attention.n_heads});
    counts.push_back({"key-value heads (num_key_value_heads)", &attention.n_kv_heads});
  };
  const auto add_width = [&counts](int64_t& width) {
    counts.push_back({"columns of feed-forward layers (intermediate_size)", &width});
  };
  add_heads(config.attention);
  for (AttentionSpec& layer : config.layer_attention) add_heads(layer);
  add_width(config.ffn_dim);
  for (int64_t& width : config.gemma.ffn_dims) add_width(width);
  if (config.experts.router.n_experts > 0) {
    counts.push_back({"columns of an expert (moe_intermediate_size)", &config.experts.ffn_dim});
    counts.push_back({"columns of shared experts", &config.experts.shared_ffn_dim});
  }
  return counts;
}

// A part of the model whose division no count describes: "layers with a recurrent state". Empty:
// there is none.
inline std::string_view PartOfNoCount(const ModelConfig& config) {
  if (!config.recurrent.layers.empty()) return "layers with a recurrent state";
  if (config.gemma.n_streams > 0) return "several streams of hidden states (AltUp)";
  return {};
}

}  // namespace tandem::engine
