#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/models/random_model.h"
#include "engine/model/families/config.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"

namespace tandem::convert {

// Parts of tiny models that the readers of an architecture may not know. Each makes a model
// plainer.
inline constexpr void (*kPlainerParts[])(engine::ModelConfig& config) = {
    [](engine::ModelConfig& c) {
      if (c.mlp_layers.empty()) return c.experts.layers.clear();
      for (size_t i = 0; i < c.mlp_layers.size(); ++i) {  // plain MLPs instead of experts
        c.mlp_layers[i] = c.mlp_layers[i] || c.experts.layers[i];
      }
      c.experts.layers.assign(c.mlp_layers.size(), false);
    },
    [](engine::ModelConfig& c) {  // Granite 4 exists without experts
      if (c.family == "granitemoehybrid") c.experts = {};
    },
    [](engine::ModelConfig& c) { c.attention.window = 0; },
    [](engine::ModelConfig& c) { c.attention_bias = c.attention_out_bias = false; },
    [](engine::ModelConfig& c) { c.mlp_bias = false; },
    [](engine::ModelConfig& c) { c.recurrent.conv_bias &= c.recurrent.scan.n_heads > 0; },
    [](engine::ModelConfig& c) {  // the sizes of a state that llama.cpp computes
      c.recurrent.in_bias = c.recurrent.out_bias = false;
      engine::ScanSpec& scan = c.recurrent.scan;
      if (scan.n_heads > 0) {
        scan.least_dt = c.family == "nemotron_h" ? 0.001f : 0;
        scan.state_dim = scan.head_dim;
        c.recurrent.conv.channels = scan.inputs();
      }
      engine::DeltaSpec& delta = c.recurrent.delta;
      if (delta.n_v_heads > 0) {
        delta.v_dim = delta.k_dim;
        c.recurrent.conv.channels = delta.inputs();
      }
    },
    [](engine::ModelConfig& c) { c.rope_scaling = {}; },
    [](engine::ModelConfig& c) {  // the only chunk of attention that GGUF's readers know
      constexpr int64_t kOnlyChunk = 8192;
      c.query_growth_period = kOnlyChunk;
      for (engine::AttentionSpec& layer : c.layer_attention) {
        if (layer.chunk > 0) layer.chunk = kOnlyChunk;
      }
    },
};

// The family's tiny model without the parts that GGUF cannot hold.
inline engine::ModelConfig GgufModelOf(const engine::FamilySpec& family) {
  engine::ModelConfig config = bench::TinyModelConfig(family.name);
  const auto is_refused = [&] {
    return std::ranges::any_of(family.gguf->limits,
                               [&](engine::GgufLimit limit) { return !limit(config).empty(); });
  };
  for (const auto plainer : kPlainerParts) {
    if (is_refused()) plainer(config);
  }
  EXPECT_FALSE(is_refused()) << "no part of the tiny model of " << family.name << " explains it";
  return config;
}

}  // namespace tandem::convert
