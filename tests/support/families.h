#pragma once

#include <string>
#include <vector>

#include "engine/model/families/family.h"

namespace tandem::tests {

// The name of every family, for tests of promises that all families keep.
inline std::vector<std::string> FamilyNames() {
  std::vector<std::string> names;
  for (const engine::FamilySpec* family : engine::Families()) names.emplace_back(family->name);
  return names;
}

// A configuration with another number of layers. Lists by layer repeat their beginning or keep
// their end, since some families' last layer must have full attention.
inline engine::ModelConfig WithLayers(engine::ModelConfig config, int64_t n_layers) {
  const auto repeat = [&](auto& list) {
    const size_t period = list.size();
    if (period == 0) return;
    const int64_t extra = static_cast<int64_t>(period) - n_layers;
    if (extra > 0) list.erase(list.begin(), list.begin() + extra);
    list.resize(static_cast<size_t>(n_layers));
    for (size_t i = period; i < list.size(); ++i) list[i] = list[i % period];
  };
  repeat(config.windowed_layers);
  repeat(config.layer_attention);
  repeat(config.layer_ropes);
  repeat(config.experts.layers);
  repeat(config.recurrent.layers);
  repeat(config.mlp_layers);
  repeat(config.gemma.ffn_dims);
  repeat(config.gemma.sparsity);
  repeat(config.gemma.cuts);
  config.n_layers = n_layers;
  return config;
}

}  // namespace tandem::tests
