#include "server/batches/batch_store.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "server/batches/batch_json.h"
#include "server/database/replica_lease.h"

namespace tandem::server {
namespace {

// Unfinished batches of one key, or of all clients without one. Each costs a row and a file.
constexpr int64_t kMaxUnfinished = 200;

}  // namespace

BatchStore::BatchStore(const std::filesystem::path& data_dir, const DatabaseSource& shared,
                       std::string replica)
    : replica_(shared.is_shared() ? std::optional(std::move(replica)) : std::nullopt),
      database_(InDataDir(shared, data_dir)) {
  const std::lock_guard lock(mutex_);
  for (const Batch& batch : UnfinishedLocked()) input_ids_[batch.id] = batch.input_file_id;
}

Batch BatchStore::Read(Query& row) const {
  Batch batch = ParseBatch(row.Text());
  if (const auto found = progress_.find(batch.id); found != progress_.end()) {
    batch.counts = found->second.counts;
    batch.usage = found->second.usage;
  }
  const auto adopted = adoptions_.find(batch.id);
  if (adopted != adoptions_.end()) batch.adoptions = adopted->second;
  return batch;
}

void BatchStore::Insert(const Batch& batch) {
  const std::lock_guard lock(mutex_);
  Transaction transaction(database_, "batches");
  {
    Query query = database_.Prepare(
        "SELECT count(*) FROM batches WHERE is_finished = 0 AND owner IS NOT DISTINCT FROM ?");
    query.Bind(batch.owner);
    if (query.Next() && query.Int() >= kMaxUnfinished) {
      throw Error(ErrorCode::kResourceExhausted,
                  "this key has " + std::to_string(kMaxUnfinished) +
                      " unfinished batches, the most allowed; wait for one, or cancel one")
          .WithReason("rate_limit_exceeded");
    }
  }
  const std::string record = StoredBatch(batch);
  Query query = database_.Prepare(
      "INSERT INTO batches (id, owner, is_finished, record, replica) VALUES (?, ?, 0, ?, ?)");
  query.Bind(std::string_view(batch.id)).Bind(batch.owner).Bind(std::string_view(record));
  query.Bind(std::optional<std::string_view>(replica_));
  query.Next();
  if (replica_) unsure_.insert(batch.id);
  transaction.Commit();
  unsure_.erase(batch.id);
  input_ids_[batch.id] = batch.input_file_id;
}

std::optional<Batch> BatchStore::FindLocked(const std::string& id,
                                            const std::optional<std::string>& replica) {
  Query query = database_.Prepare(
      "SELECT record FROM batches WHERE id = ?1 AND (?2 IS NULL OR replica = ?2)");
  query.Bind(std::string_view(id)).Bind(std::optional<std::string_view>(replica));
  if (!query.Next()) return std::nullopt;
  return Read(query);
}

std::optional<Batch> BatchStore::Find(const std::string& id) {
  const std::lock_guard lock(mutex_);
  return FindLocked(id, std::nullopt);
}

BatchPage BatchStore::List(const std::string& after, size_t limit,
                           const std::optional<int64_t>& viewer) {
  const std::lock_guard lock(mutex_);
  int64_t beyond = std::numeric_limits<int64_t>::max();
  if (!after.empty()) {
    Query query = database_.Prepare(
        "SELECT seq FROM batches WHERE id = ?1 AND (?2 IS NULL OR owner IS NULL OR owner = ?2)");
    query.Bind(std::string_view(after)).Bind(viewer);
    if (!query.Next()) return {};
    beyond = query.Int();
  }
  Query query = database_.Prepare(
      "SELECT record FROM batches WHERE seq < ?1 AND (?2 IS NULL OR owner IS NULL OR owner = ?2) "
      "ORDER BY seq DESC LIMIT ?3");
  // One extra row tells whether more exist.
  query.Bind(beyond).Bind(viewer).Bind(static_cast<int64_t>(limit) + 1);
  BatchPage page;
  while (query.Next()) {
    if (page.batches.size() == limit) {
      page.has_more = true;
      break;
    }
    page.batches.push_back(Read(query));
  }
  return page;
}

std::vector<Batch> BatchStore::UnfinishedLocked() {
  Query query = database_.Prepare("SELECT record FROM batches WHERE is_finished = 0 ORDER BY seq");
  std::vector<Batch> found;
  while (query.Next()) found.push_back(Read(query));
  return found;
}

std::vector<Batch> BatchStore::Adopt() {
  const std::lock_guard lock(mutex_);
  if (!replica_) return UnfinishedLocked();
  const std::string left =
      std::string("is_finished = 0 AND replica IS DISTINCT FROM ?1 AND ") + kReplicaIsGone;
  std::vector<Batch> found;
  {
    Query query = database_.Prepare("SELECT record FROM batches WHERE " + left + " ORDER BY seq");
    query.Bind(std::string_view(*replica_));
    while (query.Next()) found.push_back(Read(query));
  }
  if (found.empty() && unsure_.empty()) return {};
  // All or none: a batch that is ours, but that the caller does not learn of, would never run. The
  // lock also waits for the end of a transaction whose answer was lost.
  Transaction transaction(database_, "batches");
  std::vector<Batch> adopted = UnsureLocked();
  for (Batch& batch : found) {
    Query query = database_.Prepare("UPDATE batches SET replica = ?1 WHERE id = ?2 AND " + left);
    query.Bind(std::string_view(*replica_)).Bind(std::string_view(batch.id));
    query.Next();
    if (database_.changes() == 0) continue;  // another replica was faster
    // Before the commit, which may be stored although it throws. Work of before must stop then.
    batch.adoptions = ++adoptions_[batch.id];
    unsure_.insert(batch.id);
    adopted.push_back(std::move(batch));
  }
  transaction.Commit();
  unsure_.clear();
  return adopted;
}

std::vector<Batch> BatchStore::UnsureLocked() {
  std::vector<Batch> ours;
  for (const std::string& id : unsure_) {
    std::optional<Batch> batch = FindLocked(id, replica_);
    if (batch && !IsTerminal(batch->status)) ours.push_back(std::move(*batch));
  }
  return ours;
}

bool BatchStore::IsUnfinished(const std::string& id) {
  const std::lock_guard lock(mutex_);
  Query query = database_.Prepare("SELECT 1 FROM batches WHERE id = ? AND is_finished = 0");
  query.Bind(std::string_view(id));
  return query.Next();
}

bool BatchStore::IsOurs(const std::string& id) {
  if (!replica_) return true;
  const std::lock_guard lock(mutex_);
  Query query = database_.Prepare("SELECT replica FROM batches WHERE id = ?");
  query.Bind(std::string_view(id));
  return query.Next() && query.TextOrNull() == replica_;
}

void BatchStore::ThrowLost(const std::string& id) {
  progress_.erase(id);
  throw Error(ErrorCode::kUnavailable, "another replica has taken over " + id)
      .WithReason(kBatchLostReason);
}

// The replica in between has moved the results to a file that this work does not write.
void BatchStore::ThrowIfReadopted(const Batch& batch) {
  const auto adopted = adoptions_.find(batch.id);
  if (adopted != adoptions_.end() && adopted->second != batch.adoptions) ThrowLost(batch.id);
}

Batch BatchStore::FindOurs(const Batch& batch) {
  const std::lock_guard lock(mutex_);
  ThrowIfReadopted(batch);
  std::optional<Batch> found = FindLocked(batch.id, replica_);
  if (!found) ThrowLost(batch.id);
  return std::move(*found);
}

bool BatchStore::UsesFile(const std::string& file_id) {
  const std::lock_guard lock(mutex_);
  if (replica_) {
    const std::vector<Batch> unfinished = UnfinishedLocked();
    return std::any_of(unfinished.begin(), unfinished.end(),
                       [&](const Batch& batch) { return batch.input_file_id == file_id; });
  }
  return std::any_of(input_ids_.begin(), input_ids_.end(),
                     [&](const auto& of) { return of.second == file_id; });
}

Batch BatchStore::Update(const std::string& id, const std::function<void(Batch&)>& change) {
  const std::lock_guard lock(mutex_);
  return UpdateLocked(id, change, std::nullopt);
}

Batch BatchStore::UpdateOurs(const Batch& batch, const std::function<void(Batch&)>& change) {
  const std::lock_guard lock(mutex_);
  ThrowIfReadopted(batch);
  return UpdateLocked(batch.id, change, replica_);
}

Batch BatchStore::UpdateLocked(const std::string& id, const std::function<void(Batch&)>& change,
                               const std::optional<std::string>& replica) {
  Transaction transaction(database_, "batches");
  std::optional<Batch> batch = FindLocked(id, replica);
  if (!batch && replica) ThrowLost(id);  // also if another replica has ended it
  TANDEM_CHECK(batch.has_value());
  if (IsTerminal(batch->status)) return std::move(*batch);
  change(*batch);
  const std::string record = StoredBatch(*batch);
  Query query = database_.Prepare("UPDATE batches SET is_finished = ?1, record = ?2 WHERE id = ?3");
  query.Bind(static_cast<int64_t>(IsTerminal(batch->status)));
  query.Bind(std::string_view(record)).Bind(std::string_view(id));
  query.Next();
  transaction.Commit();
  if (IsTerminal(batch->status)) {
    progress_.erase(id);
    input_ids_.erase(id);
  }
  return std::move(*batch);
}

void BatchStore::SetProgress(const std::string& id, const BatchCounts& counts,
                             const BatchUsage& usage) {
  const std::lock_guard lock(mutex_);
  progress_[id] = {counts, usage};
}

}  // namespace tandem::server
