#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/config.h"
#include "engine/model/layer_ops.h"
#include "engine/model/weights.h"

namespace tandem::engine {

// A model family, stated once; the table of all of them is families.cc.
struct FamilySpec {
  std::string_view name;
  std::span<const std::string_view>
      architectures;  // `architectures[0]` / `model_type` it answers to
  // Throws kDataLoss / kUnsupported naming `source` and the field.
  ModelConfig (*parse_config)(const nlohmann::ordered_json& config, const std::string& source);
  // config.json of a model with this configuration, as Hugging Face would read it.
  nlohmann::ordered_json (*write_config)(const ModelConfig& config);
  std::vector<WeightSpec> (*list_weights)(const ModelConfig& config);
  // Inverse rope frequencies [head_dim/2], scaling applied; empty for families without rope.
  std::vector<double> (*rope_frequencies)(const ModelConfig& config);
  void (*forward)(const ModelConfig& config, const Weights& weights, LayerOps& ops);
};

std::span<const FamilySpec* const> Families();
// Throws kUnsupported listing the supported architectures.
const FamilySpec& FindFamily(const nlohmann::ordered_json& config, const std::string& source);
const FamilySpec& FindFamilyByName(std::string_view name);

}  // namespace tandem::engine
