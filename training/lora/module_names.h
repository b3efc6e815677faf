#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/families/family.h"

namespace tandem::training {

// The names of a linear layer's module in lora.module_path. The first is its own path
// ("model.layers.3.mlp.up_proj"); the others are:
// - the path with slashes, as in Flax NNX and qwix;
// - MaxText's by the family's LoraNames: "decoder/layers/mlp/wi_1" (scanned),
//   "decoder/layers_3/mlp/wi_1". Families of pairs have "decoder/layers/mlp_global/wi_1" and
//   "decoder/layers_1/mlp_global/wi_1", families of sixes also "decoder/layers/layers_3/mlp/wi_1".
//   Families of cycles have the last form alone for scanned layers. All experts of a layer share
//   one name: "decoder/layers/moe_block/wi_1". Families whose first `n_dense_layers` have no
//   experts have "decoder/dense_layers/…" and "decoder/moe_layers/…", the latter also as
//   "decoder/moe_stack/…".
std::vector<std::string> NamesOfModule(const engine::FamilySpec& family, const std::string& path,
                                       int64_t n_dense_layers = 0);

}  // namespace tandem::training
