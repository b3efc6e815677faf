#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/adapter/lora_adapter.h"
#include "engine/model/family.h"
#include "training/lora/lora_options.h"
#include "training/program/program.h"

namespace tandem::training {

// The layers that get an adapter. Throws kInvalidArgument naming lora.module_path when it is no
// expression or matches no linear layer.
std::vector<LoraTarget> ChooseLoraTargets(const LoraOptions& options,
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
