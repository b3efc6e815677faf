#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tandem::training {

struct GarbageOptions {
  int64_t keep = 3;      // number of newest steps to keep; at least 1
  bool dry_run = false;  // only list what would be removed
};

// A removable entry of a directory of checkpoints.
struct Garbage {
  std::filesystem::path path;
  int64_t bytes = 0;
  std::string why;
};

struct GarbageResult {
  std::vector<Garbage> removed;             // or would be removed, in a dry run
  std::vector<std::filesystem::path> kept;  // steps, newest first
};

// Removes leftovers and old steps from `dir`, which holds the steps or a run's `checkpoints/`.
// - Keeps options.keep steps, the newest valid one (all files present, hashes right) and the one
//   with the best evaluation (train_state.json of the newest valid one).
// - Removes `.trash-*`, and the `*.tmp-*` and conversions' `*.part` of dead writers.
// Renames a step before deleting it, so that no reader takes a partial one for a checkpoint. Throws
// kNotFound when `dir` is no directory, kIo naming a path that could not be removed.
GarbageResult CollectGarbage(const std::filesystem::path& dir, const GarbageOptions& options);

}  // namespace tandem::training
