#pragma once

#include <string>
#include <vector>

#include "engine/formats/model_dir.h"
#include "engine/model/model.h"
#include "training/program/program.h"
#include "training/spec/spec.h"
#include "training/step/parameters.h"

namespace tandem::training {

// How the base of a spec's adapter is opened: as a server would open it, in what lora.base_dtype
// says. Throws kInvalidArgument naming the keys when the files keep blocks of integers and the spec
// asks to compute in f32.
engine::LoadOptions BaseLoadOptions(const TrainSpec& spec, const engine::ModelDir& dir,
                                    const std::vector<engine::WeightSpec>& weights);

// The adapter that a run trains: chosen by the spec, or that of lora.load_path.
struct AdapterPlan {
  LoraOptions options;  // the spec's, with what an adapter that is there says itself
  std::vector<LoraTarget> targets;
  std::string base_hash;  // of the weights it was trained beside, where it says so
};

// Throws as ChooseLoraTargets, LoraAdapter::Open and LoraTargetsOf; kUnsupported naming the field
// when layers of the adapter differ in rank or scale.
AdapterPlan PlanAdapter(const LoraOptions& lora, const engine::FamilySpec& family,
                        const engine::ModelConfig& config);

// Puts A and B of the adapter in `plan.options.load_path` into the store of `plan.targets`.
void LoadAdapterWeights(const AdapterPlan& plan, const engine::FamilySpec& family,
                        const engine::ModelConfig& config, ParameterStore& parameters);

}  // namespace tandem::training
