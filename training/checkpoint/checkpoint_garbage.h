#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tandem::training {

struct GarbageOptions {
  int64_t keep = 3;      // steps, the newest; at least 1
  bool dry_run = false;  // only say what would go
};

// What is in the way in a directory of checkpoints.
struct Garbage {
  std::filesystem::path path;
  int64_t bytes = 0;
  std::string why;
};

struct GarbageResult {
  std::vector<Garbage> removed;             // or would be
  std::vector<std::filesystem::path> kept;  // steps, newest first
};

// Removes steps beyond options.keep, but never the newest whose files are all there with the right
// hashes, nor the one whose evaluation was best (train_state.json of that newest); `.trash-*`; and
// what writers that do not live any more have left: `*.tmp-*`, `*.part` of conversions. `dir` holds
// the steps, or is a run's directory with `checkpoints/` in it. Steps are renamed before they are
// deleted, so that nobody takes half of one for a checkpoint. Throws kNotFound where there is no
// such directory, kIo naming what could not be removed.
GarbageResult CollectGarbage(const std::filesystem::path& dir, const GarbageOptions& options);

}  // namespace tandem::training
