#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "bench/models/random_model.h"
#include "engine/formats/gguf/gguf_names.h"
#include "engine/model/families/config.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"

namespace tandem::convert {

// Parts of tiny models that the readers of an architecture may not know. Each makes a model
// plainer.
inline constexpr void (*kPlainerParts[])(engine::ModelConfig& config) = {
    [](engine::ModelConfig& c) {
      if (c.mlp_layers.empty()) c.experts.layers.clear();
    },
    [](engine::ModelConfig& c) {
      if (c.family == "nemotron_h") c.experts.router.n_groups = c.experts.router.top_groups = 1;
    },
    [](engine::ModelConfig& c) { c.attention.window = 0; },
    [](engine::ModelConfig& c) { c.attention_bias = c.attention_out_bias = false; },
    [](engine::ModelConfig& c) { c.mlp_bias = false; },
    [](engine::ModelConfig& c) { c.recurrent.conv_bias &= c.recurrent.scan.n_heads > 0; },
    [](engine::ModelConfig& c) {  // the sizes of a state that llama.cpp computes
      if (c.recurrent.norm == engine::ScanNorm::kBeforeGate) {
        c.recurrent.norm = engine::ScanNorm::kAfterGate;
      }
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
    [](engine::ModelConfig& c) {  // experts instead of plain MLPs
      for (size_t i = 0; i < c.mlp_layers.size(); ++i) {
        c.experts.layers[i] = c.experts.layers[i] || c.mlp_layers[i];
      }
      c.mlp_layers.assign(c.mlp_layers.size(), false);
    },
};

// Families whose models exist with and without experts.
inline engine::ModelConfig WithoutExperts(engine::ModelConfig c) {
  for (size_t i = 0; i < c.mlp_layers.size(); ++i) {
    c.mlp_layers[i] = c.mlp_layers[i] || c.experts.layers[i];
  }
  if (c.mlp_layers.empty()) {
    c.experts = {};
  } else {
    c.experts.layers.assign(c.mlp_layers.size(), false);
  }
  return c;
}

// Files have a row for each token, and multipliers within the weights.
inline engine::ModelConfig AsInGguf(const engine::FamilySpec& family, engine::ModelConfig config) {
  if (config.gemma.per_layer_dim > 0) config.gemma.per_layer_vocab = config.vocab_size;
  return family.gguf->folded == nullptr ? config : family.gguf->folded(config);
}

// `config` without the parts that GGUF cannot hold.
inline engine::ModelConfig GgufModelOf(const engine::FamilySpec& family,
                                       engine::ModelConfig config) {
  config = AsInGguf(family, std::move(config));
  const auto is_refused = [&] {
    return std::ranges::any_of(engine::GgufArchitectureOf(family, config).limits,
                               [&](engine::GgufLimit limit) { return !limit(config).empty(); });
  };
  for (const auto plainer : kPlainerParts) {
    if (is_refused()) plainer(config);
  }
  EXPECT_FALSE(is_refused()) << "no part of the tiny model of " << family.name << " explains it";
  return config;
}
inline engine::ModelConfig GgufModelOf(const engine::FamilySpec& family) {
  return GgufModelOf(family, bench::TinyModelConfig(family.name));
}

}  // namespace tandem::convert
