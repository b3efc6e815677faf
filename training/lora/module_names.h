#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::training {

// The names of a linear layer's module in lora.module_path. The first is its own path
// ("model.layers.3.mlp.up_proj"); the others are:
// - the path with slashes, as in Flax NNX and qwix;
// - for decoder layers MaxText's: "decoder/layers/mlp/wi_1" (scanned), "decoder/layers_3/mlp/wi_1".
// Gemma 2 has pairs of layers: "decoder/layers/mlp_global/wi_1",
// "decoder/layers_1/mlp_global/wi_1".
// Gemma 3 has groups of six: "decoder/layers/layers_3/mlp/wi_1".
std::vector<std::string> NamesOfModule(std::string_view family, const std::string& path);

}  // namespace tandem::training
