#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/setup/memory_needs.h"
#include "training/spec/spec.h"

namespace tandem::training {

// Words on top of a spec that would make it fit.
struct PlannedChange {
  std::string words;  // "train.remat=full"
  int64_t total_bytes = 0;
  double time = 1;          // of a step, in those of the spec as it is
  bool same_result = true;  // up to the last digits of sums
};

// What a run will take, before anything starts.
struct TrainingPlan {
  int64_t parameters = 0;  // base included
  int64_t trained = 0;
  MemoryNeeds memory;
  int64_t budget_bytes = 0;
  int64_t steps = 0;
  double step_flops = 0;  // of the model
  double step_recomputed_flops = 0;
  // Of train.dpo: what its reference takes before the first step, at most: a forward pass over the
  // pairs of all steps. Where pairs come more than once it is less.
  double reference_flops = 0;
  double seconds = 0;  // of all steps, as an estimate; 0: no roof was given

  std::vector<PlannedChange> changes;  // the cheapest three that fit, when the spec does not
  PlannedChange smallest;              // the least that any of them takes

  std::vector<std::string> notes;  // keys of the spec without effect here

  bool fits() const { return memory.total_bytes() <= budget_bytes; }
};

struct PlanOptions {
  int64_t budget_bytes = 0;     // 0: resources.memory_max_bytes, else what the machine has free
  double flops_per_second = 0;  // of this machine's roof; 0: the time is not estimated
};

// Reads the model's configuration and headers, no weights. Throws what the run would throw for a
// spec that cannot be.
TrainingPlan PlanTraining(const TrainSpec& spec, const PlanOptions& options);

// {"bytes":{…by class},"total_bytes",…}: what `tandem plan --json` and a dry run answer.
std::string PlanJson(const TrainingPlan& plan);
// The same for people.
std::string DescribePlan(const TrainingPlan& plan);
// All policies of train.remat with their bytes and recomputation.
std::string DescribePolicies(const TrainSpec& spec);

// Throws kResourceExhausted with the numbers and the cheapest changes when the run needs more than
// resources.memory_max_bytes, or, without it, more than the machine has available. The weights of
// an adapter's base do not count against what is available: they may be mapped, and shared.
void RefuseWhatCannotFit(const TrainSpec& spec);

}  // namespace tandem::training
