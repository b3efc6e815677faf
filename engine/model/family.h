#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/config.h"
#include "engine/model/layer_ops.h"
#include "engine/model/weights.h"
#include "engine/ops/rows.h"

namespace tandem::engine {

// The parameters of one rotation table.
struct RopeSpec {
  std::vector<double> frequencies;  // [head_dim/2], scaling applied
  double amplitude = 1;             // multiplies cosine and sine
};

// A model family; families.cc has the table of all families.
struct FamilySpec {
  std::string_view name;
  std::span<const std::string_view>
      architectures;  // `architectures[0]` or `model_type` values of this family
  // Throws kDataLoss / kUnsupported naming `source` and the field.
  ModelConfig (*parse_config)(const nlohmann::ordered_json& config, const std::string& source);
  // The config.json of a model with this configuration, in Hugging Face's form.
  nlohmann::ordered_json (*write_config)(const ModelConfig& config);
  std::vector<WeightSpec> (*list_weights)(const ModelConfig& config);
  // The tables that LayerOps::Rope names by index; none for families without rope.
  std::vector<RopeSpec> (*list_ropes)(const ModelConfig& config);
  void (*forward)(const ModelConfig& config, const Weights& weights, LayerOps& ops);
  // Turns a small plain model (random_model.h) into one of this family with all optional parts.
  void (*shape_tiny)(ModelConfig& config);
};

std::span<const FamilySpec* const> Families();
// The family's rope tables for positions below `max_positions`.
std::vector<RopeTable> MakeRopeTables(const FamilySpec& family, const ModelConfig& config,
                                      int64_t max_positions);
// Throws kUnsupported listing the supported architectures.
const FamilySpec& FindFamily(const nlohmann::ordered_json& config, const std::string& source);
const FamilySpec& FindFamilyByName(std::string_view name);

}  // namespace tandem::engine
