#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/adapter/lora_adapter.h"
#include "engine/model/families/family.h"
#include "training/lora/lora_options.h"
#include "training/program/program.h"

namespace tandem::training {

// The layers that get an adapter: lora.module_path matches one of their names (module_names.h).
// Throws kInvalidArgument naming the key and the nearest names when the expression is invalid or
// matches no linear layer. With lora.unmatched error, every alternative must match. Without an
// expression: all linear layers but the routers of experts. Tables of embeddings and the head are
// among them with lora.embeddings only. Then the copies of lora.modules_to_save. Ordered by weight.
std::vector<LoraTarget> ChooseLoraTargets(const LoraOptions& options,
                                          const engine::FamilySpec& family,
                                          const engine::ModelConfig& config);

// When alternatives of lora.module_path match no layer: one sentence for each of them, with a
// suggestion, then one for each other alternative. Empty otherwise.
std::vector<std::string> UnmatchedBranches(const LoraOptions& options,
                                           const engine::FamilySpec& family,
                                           const engine::ModelConfig& config);

// Describes the chosen layers, one line per kind with the number of layers and adapter parameters:
// "model.layers.*.mlp.up_proj: 26 layers, 1905664 parameters".
std::vector<std::string> DescribeTargets(const std::vector<LoraTarget>& targets,
                                         const std::vector<engine::WeightSpec>& base_specs);

// The module path of a target in PEFT's files.
std::string PathOfTarget(const LoraTarget& target,
                         const std::vector<engine::WeightSpec>& base_specs);

// Matrices that lora.module_path names but that get no adapter: embedding tables and the head
// without lora.embeddings, and others such as tables of positions.
std::vector<std::string> TargetsPassedOver(const LoraOptions& options,
                                           const engine::FamilySpec& family,
                                           const engine::ModelConfig& config);

// The targets of an existing adapter. Throws kDataLoss naming a tensor that does not fit.
std::vector<LoraTarget> LoraTargetsOf(const engine::LoraAdapter& adapter,
                                      const engine::FamilySpec& family,
                                      const engine::ModelConfig& config);

// Initial values of A or B (one of LoraSpecs); they depend on the seed and the name only. For a
// table of embeddings A is zero and B standard normal, as in PEFT.
std::vector<float> InitialLora(const engine::WeightSpec& spec, LoraInit init, uint64_t seed);

// The text of adapter_config.json for these targets.
std::string LoraConfigOf(const LoraOptions& options, const std::vector<LoraTarget>& targets,
                         const std::vector<engine::WeightSpec>& base_specs,
                         const std::string& base_model);

}  // namespace tandem::training
