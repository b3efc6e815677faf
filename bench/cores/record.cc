#include "bench/cores/record.h"

#include <numeric>

#include "bench/measure/paired.h"
#include "engine/base/check.h"
#include "engine/base/error.h"

namespace tandem::bench {
namespace {

using Region = ParallelRecord::Region;

double TaskSeconds(const Region& region) {
  return std::accumulate(region.task_seconds.begin(), region.task_seconds.end(), 0.0);
}

// The median of value(record) over all records.
template <class Value>
double MedianOf(const std::vector<ParallelRecord>& records, const Value& value) {
  std::vector<double> values;
  values.reserve(records.size());
  for (const ParallelRecord& record : records) values.push_back(value(record));
  return Median(std::move(values));
}

void CheckEqualShape(const ParallelRecord& a, const ParallelRecord& b) {
  bool is_equal = a.regions.size() == b.regions.size();
  for (size_t r = 0; is_equal && r < a.regions.size(); ++r) {
    is_equal = a.regions[r].task_seconds.size() == b.regions[r].task_seconds.size();
  }
  if (is_equal) return;
  throw Error(ErrorCode::kFailedPrecondition,
              "two recordings of one step have different regions or tasks");
}

}  // namespace

ParallelRecord MedianRecord(const std::vector<ParallelRecord>& records) {
  TANDEM_CHECK(!records.empty());
  for (const ParallelRecord& record : records) CheckEqualShape(records.front(), record);
  ParallelRecord median = records.front();
  for (size_t r = 0; r < median.regions.size(); ++r) {
    Region& region = median.regions[r];
    region.serial_seconds =
        MedianOf(records, [&](const auto& record) { return record.regions[r].serial_seconds; });
    for (size_t t = 0; t < region.task_seconds.size(); ++t) {
      region.task_seconds[t] =
          MedianOf(records, [&](const auto& record) { return record.regions[r].task_seconds[t]; });
    }
  }
  median.last_serial_seconds =
      MedianOf(records, [](const auto& record) { return record.last_serial_seconds; });
  return median;
}

RecordSummary Summarise(const ParallelRecord& record) {
  RecordSummary summary{.serial = record.last_serial_seconds};
  for (const Region& region : record.regions) {
    const double tasks = TaskSeconds(region);
    ++summary.regions;
    summary.tasks += static_cast<int64_t>(region.task_seconds.size());
    summary.weight_bytes += region.weight_bytes;
    summary.serial += region.serial_seconds;
    summary.seconds += tasks;
    if (region.task_seconds.size() > 1) continue;
    summary.serial += tasks;
    summary.seconds -= tasks;
  }
  summary.seconds += summary.serial;
  return summary;
}

double SecondsOfFewTasks(const ParallelRecord& record, int cores) {
  double seconds = 0;
  for (const Region& region : record.regions) {
    const bool is_few =
        region.task_seconds.size() > 1 && region.task_seconds.size() < static_cast<size_t>(cores);
    if (is_few) seconds += TaskSeconds(region);
  }
  return seconds;
}

}  // namespace tandem::bench
