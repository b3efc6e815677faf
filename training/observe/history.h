#pragma once

#include <cstdint>
#include <filesystem>
#include <map>

namespace tandem::training {

// What metrics.jsonl tells of the steps that a resumed run has done: of lines of one step the last
// counts, lines of steps that will be done anew do not, half lines are skipped.
struct MetricsHistory {
  double started_unix = 0;                // when the first step of all began; 0: no step
  double productive_seconds = 0;          // of steps that count
  std::map<int64_t, double> losses;       // by step
  std::map<int64_t, double> eval_losses;  // by steps done
};

MetricsHistory ReadHistory(const std::filesystem::path& path, int64_t first_step);

}  // namespace tandem::training
