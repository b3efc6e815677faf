#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

namespace tandem {

// One thing that happened in a job; the child process appends it to events.jsonl.
struct ProgressEvent {
  std::string kind;  // "step", "checkpoint", "export", "sample", "warning", "message"
  int64_t step = 0;
  int64_t total_steps = 0;
  double value = 0;  // the loss of a step
  std::string message = {};
  double bytes_per_s = 0;   // of what is read and written; 0: not told
  double seconds_left = 0;  // with bytes_per_s
};

// All that a job may know of the world.
struct JobContext {
  std::filesystem::path dir;        // its own directory; every output goes here
  std::filesystem::path cache_dir;  // packed weights, shared with servers; empty: none
  std::stop_token stop;             // asked between steps; then checkpoint and return
  std::function<void(const ProgressEvent&)> report;
};

}  // namespace tandem
