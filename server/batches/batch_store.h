#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/batches/batch.h"
#include "server/database/database.h"

namespace tandem::server {

// Error::reason() when another replica has taken over a batch.
inline constexpr const char* kBatchLostReason = "batch_lost";

struct BatchPage {
  std::vector<Batch> batches;  // newest first
  bool has_more = false;
};

// The table of batches. Any thread. Methods throw as Database. Locks are taken in the order files,
// batches.
//
// A batch of a shared database belongs to the replica that has made it, and after its end to
// whichever replica adopts it. A replica that was taken for gone learns of it at its next FindOurs
// or UpdateOurs, and stops. So does the work that began before, if the batch has come back since.
class BatchStore {
 public:
  // REQUIRES: the directory is locked (JobStore).
  explicit BatchStore(const std::filesystem::path& data_dir, const DatabaseSource& shared = {},
                      std::string replica = {});

  // On disk at return. Throws kResourceExhausted if the owner has too many unfinished batches.
  // Another error can come after the database has stored the batch; Adopt returns it then.
  // REQUIRES: the id is new.
  void Insert(const Batch& batch);
  std::optional<Batch> Find(const std::string& id);
  // An unknown `after` gives an empty page. With `viewer`, the page has only the batches of this
  // owner and batches without an owner.
  BatchPage List(const std::string& after, size_t limit, const std::optional<int64_t>& viewer);
  // Whether the batch exists and has no terminal status.
  bool IsUnfinished(const std::string& id);
  // Unfinished batches of replicas that have ended; they belong to this replica now. So do batches
  // of an earlier Insert or Adopt that threw, but was stored. Changes nothing if there is none,
  // since every change wakes all replicas. Without replicas: all unfinished batches, oldest first.
  std::vector<Batch> Adopt();
  // Whether this replica, and no other, works on the batch.
  bool IsOurs(const std::string& id);
  // As Find, for work that began with `batch`. Throws kUnavailable (kBatchLostReason) if the batch
  // belongs to another replica by now, or has belonged to one since.
  Batch FindOurs(const Batch& batch);
  bool is_shared() const { return replica_.has_value(); }
  // Whether an unfinished batch reads the file.
  bool UsesFile(const std::string& file_id);

  // Changes a batch and returns it; no other change comes in between. The change is on disk at
  // return. A batch with a terminal status never changes. REQUIRES: the batch exists; `change`
  // does not call the store.
  Batch Update(const std::string& id, const std::function<void(Batch&)>& change);
  // As Update, for work that began with `batch`. Throws as FindOurs, and changes nothing then.
  Batch UpdateOurs(const Batch& batch, const std::function<void(Batch&)>& change);
  // Sets figures that Find and List show at once. Update writes them to disk.
  void SetProgress(const std::string& id, const BatchCounts& counts, const BatchUsage& usage);

 private:
  struct Progress {
    BatchCounts counts;
    BatchUsage usage;
  };

  // These REQUIRE mutex_ held.
  // `replica`: only a batch of this one.
  std::optional<Batch> FindLocked(const std::string& id, const std::optional<std::string>& replica);
  Batch UpdateLocked(const std::string& id, const std::function<void(Batch&)>& change,
                     const std::optional<std::string>& replica);
  std::vector<Batch> UnsureLocked();
  void ThrowIfReadopted(const Batch& batch);
  // Throws kBatchLostReason.
  [[noreturn]] void ThrowLost(const std::string& id);
  Batch Read(Query& row) const;
  std::vector<Batch> UnfinishedLocked();

  const std::optional<std::string> replica_;  // unset: no replicas
  std::mutex mutex_;                          // guards the rest
  Database database_;
  std::map<std::string, Progress> progress_;      // of running batches
  std::map<std::string, std::string> input_ids_;  // of unfinished batches
  std::map<std::string, int64_t> adoptions_;      // of batches that this process has adopted
  // Batches that may be this replica's although the change that made them so threw: the answer of
  // the database was lost.
  std::set<std::string> unsure_;
};

}  // namespace tandem::server
