#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/model/families/config.h"

namespace tandem::engine {

// Heads of full-attention layers that differ from `head_dim` and `num_key_value_heads`, which then
// belong to layers with a window.
struct FullLayerHeads {
  int64_t head_dim = 0;       // where `global_head_dim` is absent
  bool own_kv_heads = false;  // `num_global_key_value_heads` counts
};

// The attention of full layers: config.attention with their heads and without a window.
// transformers 5 saves `per_layer_config`, the layers that differ by number; other files have
// `global_head_dim` and `num_global_key_value_heads`. REQUIRES: windowed_layers is parsed. Throws
// kDataLoss / kUnsupported naming `source` and the field.
AttentionSpec ParseFullLayerHeads(const nlohmann::ordered_json& json,
                                  const FullLayerHeads& defaults, const ModelConfig& config,
                                  const std::string& source);
// Writes both forms. `full` is the attention of full layers.
void WriteFullLayerHeads(const ModelConfig& config, const AttentionSpec& full, bool own_kv_heads,
                         nlohmann::ordered_json& json);

}  // namespace tandem::engine
