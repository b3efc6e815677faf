#pragma once

#include <cstdint>
#include <filesystem>
#include <map>

namespace tandem::training {

// Metrics of the finished steps of a resumed run, from metrics.jsonl. The last line of a step
// counts. Lines of steps that will be repeated and incomplete lines do not.
struct MetricsHistory {
  double started_unix = 0;                // begin of the very first step; 0: no step
  double productive_seconds = 0;          // of steps that count
  std::map<int64_t, double> losses;       // by step
  std::map<int64_t, double> eval_losses;  // by steps done
};

MetricsHistory ReadHistory(const std::filesystem::path& path, int64_t first_step);

}  // namespace tandem::training
