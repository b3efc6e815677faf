#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/layer_ops.h"
#include "engine/model/families/weights.h"

namespace tandem::engine {

// Mamba-2 mixers (Dao and Gu 2024) under transformers' names. Their sizes are in config.recurrent.

// Keys of config.json, and the values of absent ones. An empty name: the class has no such key.
struct MambaKeys {
  const char* n_heads = "mamba_n_heads";
  const char* head_dim = "mamba_d_head";
  const char* n_groups = "mamba_n_groups";
  const char* state_dim = "mamba_d_state";
  const char* kernel = "mamba_d_conv";
  const char* conv_bias = "mamba_conv_bias";
  const char* expand = "mamba_expand";  // width by hidden_dim; empty: the width of the heads
  const char* width = "";               // precedes `expand`
  const char* proj_bias = "mamba_proj_bias";
  const char* time_limit = "time_step_limit";
  int64_t heads = 128;
  int64_t dim = 0;  // 0: of the width
  int64_t groups = 1;
  int64_t state = 256;
  int64_t default_width = 0;  // 0: by `expand`
};

// Sets the scan, the convolution and their biases. Throws kDataLoss naming `source` and the field.
void ParseMamba(const nlohmann::ordered_json& json, const MambaKeys& keys, ModelConfig& config,
                const std::string& source);
void WriteMamba(const ModelConfig& config, const MambaKeys& keys, nlohmann::ordered_json& json);
// Refuses activations other than SiLU in `field`, which convolutions and gates use.
void RequireMambaSilu(const nlohmann::ordered_json& json, const char* field,
                      const std::string& source);

// `prefix` is the mixer's: "model.layers.3.mamba.".
void ListMamba(std::vector<WeightSpec>& specs, const std::string& prefix,
               const ModelConfig& config);
// `h` is the normed input of the layer.
Act RunMamba(LayerOps& ops, WeightCursor& weights, const ModelConfig& config, Act h);

// A tiny scan of the two groups with all biases.
void ShapeTinyMamba(ModelConfig& config);

// x * factor, without an op for 1.
Act Multiplied(LayerOps& ops, Act x, float factor);
// As RunHead, with the multiplier of the logits.
void RunMultipliedHead(LayerOps& ops, WeightCursor& weights, const Weight& embedding,
                       const ModelConfig& config, Act x);

}  // namespace tandem::engine
