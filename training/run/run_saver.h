#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/io/disk_error.h"
#include "training/checkpoint/checkpoint_writer.h"
#include "training/run/run_checkpoint.h"
#include "training/setup/run_parts.h"

namespace tandem::training {

// Runs `action` and turns I/O failures into warnings. A full disk must not end a run: earlier saves
// are intact and space may return. Returns whether it worked.
template <class Action>
bool Guarded(const WarnFunction& warn, const std::string& what, const Action& action) {
  const auto error = engine::DiskErrorOf(action);
  if (error) warn(what + " failed, training continues: " + error->what());
  return !error;
}

// Finds and writes the checkpoints of a run, in the background or while the run waits. Reports the
// outcome of a save from the run's thread, at its next call. Borrows the parts. All ranks of a run
// make the same calls; only the first one reads and writes files.
class RunSaver {
 public:
  enum class Wait { kNo, kYes };
  struct Reports {
    std::function<void(const std::filesystem::path& checkpoint)> saved;
    WarnFunction warn;
  };

  RunSaver(RunParts& parts, const std::filesystem::path& dir, Reports reports);

  // Returns the newest valid checkpoint. A run that does not resume moves existing ones aside.
  // Throws kDataLoss naming them when none is valid, unless checkpoint.on_unreadable allows a
  // restart.
  std::optional<FoundCheckpoint> Begin();
  // Returns the newest, after the save in flight.
  std::optional<FoundCheckpoint> FindNewest();

  // Waits for the save in flight, then saves. Without memory for a copy it waits for this save too.
  void Save(const RunProgress& progress, Wait wait);
  // Saves to checkpoint.local_directory, while the run waits.
  void SaveLocally(const RunProgress& progress);
  // Reports the outcome of the save in flight once it is done. Wait::kYes waits for it.
  void Take(Wait wait);

  const std::filesystem::path& newest() const { return newest_; }  // empty: none of this process
  bool has_checkpoint() const { return !newest_.empty(); }

 private:
  std::optional<FoundCheckpoint> BeginHere();
  std::optional<FoundCheckpoint> FindHere(std::vector<std::string>* unusable);
  // All ranks get the first rank's.
  std::optional<FoundCheckpoint> Shared(std::optional<FoundCheckpoint> found);
  [[noreturn]] void ThrowUnusable(const std::vector<std::string>& unusable) const;
  // All ranks write. `store` is null except on the first rank. `place` is the key of its directory.
  void SaveTogether(const RunProgress& progress, CheckpointStore* store, const char* place);
  void OpenLocalStore(const std::filesystem::path& dir);
  void Saved(const std::filesystem::path& checkpoint);

  RunParts& parts_;
  const Reports reports_;
  std::optional<CheckpointStore> store_;  // only on the first rank: the others cannot write
  std::optional<CheckpointWriter> writer_;
  std::optional<CheckpointStore> local_;  // likewise; absent without checkpoint.local_directory
  std::filesystem::path newest_;
};

// Restores this checkpoint but keeps the data position, so that the run does not meet the same data
// again.
RunProgress RollBack(RunParts& parts, const FoundCheckpoint& found, const WarnFunction& warn);

}  // namespace tandem::training
