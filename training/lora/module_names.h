#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::training {

// What the module of a linear layer may be called in lora.module_path, beginning with its own path
// ("model.layers.3.mlp.up_proj"):
//  - the path with slashes, as Flax NNX and qwix have it;
//  - of decoder layers MaxText's: "decoder/layers/mlp/wi_1" (scanned), "decoder/layers_3/mlp/wi_1";
//    of a Gemma 2 layers come in pairs, "decoder/layers/mlp_global/wi_1" and
//    "decoder/layers_1/mlp_global/wi_1", of a Gemma 3 in sixes, "decoder/layers/layers_3/mlp/wi_1".
std::vector<std::string> NamesOfModule(std::string_view family, const std::string& path);

}  // namespace tandem::training
