#pragma once

#include <string>
#include <vector>

#include "engine/formats/model_dir.h"
#include "engine/model/model.h"
#include "training/program/program.h"
#include "training/spec/spec.h"
#include "training/step/parameters.h"

namespace tandem::training {

// Options that open an adapter's base as a server does, in the type of lora.base_dtype. Throws
// kInvalidArgument naming the keys when lora.base_dtype is auto, the files hold integer blocks and
// the spec computes in f32.
engine::LoadOptions BaseLoadOptions(const TrainSpec& spec, const engine::ModelDir& dir,
                                    const std::vector<engine::WeightSpec>& weights);

// The adapter that a run trains: described by the spec, or loaded from lora.load_path.
struct AdapterPlan {
  LoraOptions options;  // the spec's, with rank and scale of a loaded adapter
  std::vector<LoraTarget> targets;
  std::string base_hash;  // of the weights that a loaded adapter was trained on; may be empty
};

// Throws the errors of ChooseLoraTargets, LoraAdapter::Open and LoraTargetsOf, and kInvalidArgument
// when lora.export asks for a merge that would change a tied table's other use.
AdapterPlan PlanAdapter(const LoraOptions& lora, const engine::FamilySpec& family,
                        const engine::ModelConfig& config);

class Trainer;

// Sets a fresh adapter's weights: A, B and magnitudes as InitialLora and BaseRowNorms give them,
// copies as in the base's files.
void InitialAdapterWeights(const AdapterPlan& plan, const engine::ModelDir& base, uint64_t seed,
                           Trainer& trainer);

// Copies the weights of the adapter at `plan.options.load_path` into the store of `plan.targets`.
// Throws kDataLoss when the files have changed since PlanAdapter.
void LoadAdapterWeights(const AdapterPlan& plan, const engine::FamilySpec& family,
                        const engine::ModelConfig& config, ParameterStore& parameters);

}  // namespace tandem::training
