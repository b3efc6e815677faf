#pragma once

#include "server/metrics/metric_families.h"
#include "server/metrics/metrics.h"

// The figures of the process. Internal to Metrics.
namespace tandem::server {

void AddMemory(MetricFamilies& families, const Metrics::Snapshot& snapshot);
void AddJobs(MetricFamilies& families, const Metrics::Snapshot& snapshot);
void AddKeys(MetricFamilies& families, const Metrics::Snapshot& snapshot);
void AddProcess(MetricFamilies& families, const Metrics::Snapshot& snapshot);

}  // namespace tandem::server
