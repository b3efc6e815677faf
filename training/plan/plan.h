#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/setup/memory_needs.h"
#include "training/spec/spec.h"

namespace tandem::training {

// Overrides that would make a spec fit.
struct PlannedChange {
  std::string words;  // "train.remat=full"
  int64_t total_bytes = 0;
  double time = 1;          // of a step, relative to the unchanged spec
  bool same_result = true;  // up to the last digits of sums
};

// The needs of a run, computed before it starts.
struct TrainingPlan {
  int64_t parameters = 0;  // base included
  int64_t trained = 0;
  MemoryNeeds memory;
  int64_t budget_bytes = 0;
  int64_t steps = 0;
  double step_flops = 0;  // of the model
  double step_recomputed_flops = 0;
  // For train.dpo: upper bound for the reference before the first step, a forward pass over the
  // pairs of all steps. Lower when pairs repeat.
  double reference_flops = 0;
  double seconds = 0;           // estimate for all steps; 0: unknown roof
  double flops_per_second = 0;  // as PlanOptions

  std::vector<PlannedChange> changes;  // the three cheapest that fit, when the spec does not
  PlannedChange smallest;              // the change with the smallest needs

  std::string refusal;  // why RefuseWhatCannotFit refuses the run; empty: it does not, or unknown
  std::vector<std::string> notes;  // the spec's keys without effect here

  bool fits() const { return memory.total_bytes() <= budget_bytes; }
};

// Assumed share of the machine's peak. Observed: 0.62 for GPT-2 (124M), 0.45 for adapters on a busy
// machine.
inline constexpr double kUsualShareOfRoof = 0.5;

struct PlanOptions {
  int64_t budget_bytes = 0;     // 0: resources.memory_max_bytes, else the machine's available
                                // memory
  double flops_per_second = 0;  // of this machine's roof; 0: no time estimate
};

// Reads the model's configuration and headers but no weights. Throws the run's own errors for an
// invalid spec.
TrainingPlan PlanTraining(const TrainSpec& spec, const PlanOptions& options);

// The answer of `tandem plan --json` and of a dry run: {"bytes":{…by class},"total_bytes",…}.
std::string PlanJson(const TrainingPlan& plan);
// The same content as text.
std::string DescribePlan(const TrainingPlan& plan);
// All policies of train.remat with their bytes and recomputation.
std::string DescribePolicies(const TrainSpec& spec);

// Throws kResourceExhausted with the numbers and the cheapest changes when the run needs too much.
// The limit is resources.memory_max_bytes, or without it the machine's available memory. The
// available memory need not hold an adapter's base, which may be mapped and shared.
void RefuseWhatCannotFit(const TrainSpec& spec);

}  // namespace tandem::training
