#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "training/checkpoint/checkpoint_writer.h"
#include "training/run/run_checkpoint.h"
#include "training/setup/run_parts.h"

namespace tandem::training {

// A disk that is full must not end a run that may yet find room: what was saved before is still
// there. Returns whether it worked.
template <class Action>
bool Guarded(const WarnFunction& warn, const std::string& what, const Action& action) {
  try {
    action();
    return true;
  } catch (const std::filesystem::filesystem_error& error) {
    warn(what + " failed, training goes on: " + error.what());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo) throw;
    warn(what + " failed, training goes on: " + error.what());
  }
  return false;
}

// The checkpoints of a run: found, and written beside it or while it waits. What becomes of a save
// is reported from the run's thread, when it next asks. Borrows the parts.
class RunSaver {
 public:
  enum class Wait { kNo, kYes };
  struct Reports {
    std::function<void(const std::filesystem::path& checkpoint)> saved;
    WarnFunction warn;
  };

  RunSaver(const RunParts& parts, const std::filesystem::path& dir, Reports reports);

  // Returns the newest valid checkpoint. A run that resumes nothing moves those that are there
  // aside. Throws kDataLoss naming them when none is valid, unless checkpoint.on_unreadable allows
  // a restart.
  std::optional<FoundCheckpoint> Begin();
  // The newest, after the save in flight.
  std::optional<FoundCheckpoint> FindNewest();

  // One save at a time: waits for the one before. Without memory for a copy this one is waited for,
  // too.
  void Save(const RunProgress& progress, Wait wait);
  // The outcome of the save in flight, if there is one and it is done or waited for.
  void Take(Wait wait);

  const std::filesystem::path& newest() const { return newest_; }  // empty: none of this process
  bool has_checkpoint() const { return !newest_.empty(); }

 private:
  std::optional<FoundCheckpoint> FindNewest(std::vector<std::string>* unusable);
  [[noreturn]] void ThrowUnusable(const std::vector<std::string>& unusable) const;
  void Saved(const std::filesystem::path& checkpoint);

  const RunParts& parts_;
  const Reports reports_;
  CheckpointStore store_;
  CheckpointWriter writer_;
  std::filesystem::path newest_;
};

// Back to this checkpoint, but with the data behind what has been read: it is not met again.
RunProgress RollBack(RunParts& parts, const FoundCheckpoint& found, const WarnFunction& warn);

}  // namespace tandem::training
