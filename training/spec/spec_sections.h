#pragma once

#include <vector>

#include "training/spec/spec_keys.h"

// The sections of the key table, in its order, and what they share. Internal to spec_keys*.cc.
namespace tandem::training {

// A field of the spec, for the makers of spec_value.h.
#define FIELD(path) \
  [](auto& spec) -> auto& { return spec.path; }

inline constexpr double kBig = 1e12;
// default_text of a key without a default.
inline constexpr const char* kRequired = "must be given";

std::vector<SpecKey> RunKeys();
std::vector<SpecKey> ModelKeys();
std::vector<SpecKey> LoraKeys();
std::vector<SpecKey> DataKeys();
std::vector<SpecKey> DpoKeys();
std::vector<SpecKey> DistillKeys();
std::vector<SpecKey> TrainKeys();
std::vector<SpecKey> GuardKeys();
std::vector<SpecKey> OptimizerKeys();
std::vector<SpecKey> RematKeys();
std::vector<SpecKey> SampleKeys();
std::vector<SpecKey> CheckpointKeys();
std::vector<SpecKey> ParallelKeys();
std::vector<SpecKey> MachineKeys();

}  // namespace tandem::training
