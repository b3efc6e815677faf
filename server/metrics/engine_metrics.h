#pragma once

#include <string>
#include <vector>

#include "server/metrics/metric_families.h"
#include "server/metrics/metrics.h"

// The figures of the engines of a model. Internal to Metrics.
namespace tandem::server {

// Sums over a model's engines, past and present.
struct EngineTotals {
  engine::EngineStats stats;
  engine::EngineHistograms histograms;

  void Add(const engine::EngineFigures& figures) { Add({figures.stats(), figures.histograms()}); }
  void Add(const EngineTotals& other) {
    const engine::EngineStats& more = other.stats;
    stats.prompt_tokens_total += more.prompt_tokens_total;
    stats.generation_tokens_total += more.generation_tokens_total;
    stats.prefix_query_tokens_total += more.prefix_query_tokens_total;
    stats.prefix_hit_tokens_total += more.prefix_hit_tokens_total;
    stats.preemptions_total += more.preemptions_total;
    stats.disk_blocks_read_total += more.disk_blocks_read_total;
    stats.disk_blocks_written_total += more.disk_blocks_written_total;
    stats.draft_tokens_total += more.draft_tokens_total;
    stats.accepted_draft_tokens_total += more.accepted_draft_tokens_total;
    stats.draft_passes_total += more.draft_passes_total;
    stats.draft_seconds_total += more.draft_seconds_total;
    histograms.Add(other.histograms);
  }
};

// Counters and histograms of a shown name.
void AddCounters(MetricFamilies& families, const std::string& name, const EngineTotals& totals);
// Gauges of a shown name. `engines` are those of the name, the newest last.
void AddGauges(MetricFamilies& families, const Metrics::Snapshot& snapshot, const std::string& name,
               const std::vector<Metrics::Model>& engines);

}  // namespace tandem::server
