#pragma once

#include <functional>
#include <string>

#include "training/setup/run_parts.h"
#include "training/spec/spec.h"

namespace tandem::training {

// Where a run's messages and warnings go.
struct RunReporter {
  std::function<void(const std::string& message)> report;
  std::function<void(const std::string& message)> warn;
};

// Reports what the run is about to do: its ranks, model, adapter, memory and data. Warns of parts
// of the spec that do not match the model or the data. REQUIRES: the first rank, whose weights are
// set.
void AnnounceRun(const RunParts& parts, const RunReporter& say);

// The memory that this process took at most, and its limit.
std::string MemoryLine(const TrainSpec& spec);

}  // namespace tandem::training
