#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/trace/parallel_trace.h"

namespace tandem::bench {

// The medians of equal steps, task by task. Throws kFailedPrecondition if their regions differ:
// then the cut into tasks does not depend on shapes only.
ParallelRecord MedianRecord(const std::vector<ParallelRecord>& records);

// Counts and sums of a record, in seconds on one core.
struct RecordSummary {
  int64_t regions = 0;
  int64_t tasks = 0;
  double seconds = 0;
  double serial = 0;  // the caller's own work, and regions of one task
  double weight_bytes = 0;
};
RecordSummary Summarise(const ParallelRecord& record);

// Seconds of regions with at least two, but fewer than `cores`, tasks: some cores have none.
double SecondsOfFewTasks(const ParallelRecord& record, int cores);

}  // namespace tandem::bench
