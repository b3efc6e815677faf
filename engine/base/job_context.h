#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

namespace tandem {

// An event of a job. The child process appends it to events.jsonl.
struct ProgressEvent {
  std::string kind;  // "step", "checkpoint", "export", "sample", "warning", "message"
  int64_t step = 0;
  int64_t total_steps = 0;
  double value = 0;  // loss of a step
  std::string message = {};
  double bytes_per_s = 0;   // read and written; 0: unknown
  double seconds_left = 0;  // with bytes_per_s
};

// Everything that a job gets from its environment.
struct JobContext {
  std::filesystem::path dir;        // its own directory; every output goes here
  std::filesystem::path cache_dir;  // packed weights, shared with servers; empty: none
  std::stop_token stop;             // checked between steps; then write a checkpoint and return
  std::function<void(const ProgressEvent&)> report;
};

}  // namespace tandem
