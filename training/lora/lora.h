#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/adapter/lora_adapter.h"
#include "engine/model/family.h"
#include "training/lora/lora_options.h"
#include "training/program/program.h"

namespace tandem::training {

// The layers that get an adapter: those one of whose names (module_names.h) lora.module_path
// matches. Throws kInvalidArgument naming lora.module_path when it is no expression or matches no
// linear layer, with the names that are nearest; with lora.unmatched: error also when one of its
// alternatives matches none.
std::vector<LoraTarget> ChooseLoraTargets(const LoraOptions& options,
                                          const engine::FamilySpec& family,
                                          const engine::ModelConfig& config);

// Where alternatives of lora.module_path match no layer: a sentence for each of them, with what may
// have been meant, then one for each of the others. Else empty.
std::vector<std::string> UnmatchedBranches(const LoraOptions& options,
                                           const engine::FamilySpec& family,
                                           const engine::ModelConfig& config);

// What was chosen, for people: one line for each kind of layer with the number of layers and of the
// adapter's parameters, "model.layers.*.mlp.up_proj: 26 layers, 1905664 parameters".
std::vector<std::string> DescribeTargets(const std::vector<LoraTarget>& targets,
                                         const std::vector<engine::WeightSpec>& base_specs);

// Embedding tables and the head, as far as lora.module_path names them: they get no adapter.
std::vector<std::string> TargetsPassedOver(const LoraOptions& options,
                                           const engine::FamilySpec& family,
                                           const engine::ModelConfig& config);

// Those of an adapter that is there. Throws kDataLoss naming the tensor that does not fit.
std::vector<LoraTarget> LoraTargetsOf(const engine::LoraAdapter& adapter,
                                      const engine::FamilySpec& family,
                                      const engine::ModelConfig& config);

// What A or B (one of LoraSpecs) begins with: a function of the seed and its name.
std::vector<float> InitialLora(const engine::WeightSpec& spec, LoraInit init, uint64_t seed);

// adapter_config.json of the adapter of these targets.
std::string LoraConfigOf(const LoraOptions& options, const std::vector<LoraTarget>& targets,
                         const std::vector<engine::WeightSpec>& base_specs,
                         const std::string& base_model);

}  // namespace tandem::training
