#include "server/database/replica_lease.h"

#include <optional>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "engine/base/thread_name.h"

namespace tandem::server {

std::string NameOfReplicaLease(std::string_view replica) {
  return "replica/" + std::string(replica);
}

// The second statement sees the leases as they were before it, so that our own does not count as
// the one that another replica has prolonged.
void RenewReplicaLease(Database& database, std::string_view replica) {
  const std::string name = NameOfReplicaLease(replica);
  Query insert = database.Prepare(
      "INSERT INTO leases (name, owner, epoch, expires_at) VALUES (?1, ?2, 1, 0) "
      "ON CONFLICT (name) DO NOTHING");
  insert.Bind(std::string_view(name)).Bind(replica);
  insert.Next();
  Query update = database.Prepare(
      "UPDATE leases SET expires_at = {now_ms} + ?2 WHERE name = ?1 OR (name LIKE 'replica/%' AND "
      "expires_at <= {now_ms} AND NOT EXISTS (SELECT 1 FROM leases AS fresh "
      "WHERE fresh.name LIKE 'replica/%' AND fresh.expires_at > {now_ms} + 5000))");
  update.Bind(std::string_view(name));
  update.Bind(static_cast<int64_t>(kReplicaLeaseDuration.count()));
  update.Next();
}

ReplicaLease::ReplicaLease(const DatabaseSource& source, std::string replica)
    : replica_(std::move(replica)), database_(source) {
  RenewReplicaLease(database_, replica_);
  thread_ = std::thread([this] { Run(); });
}

ReplicaLease::~ReplicaLease() { Stop(); }

void ReplicaLease::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ReplicaLease::Run() {
  NameThisThread("tandem-lease");
  bool was_lost = false;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kRenewReplicaLeaseEvery, [this] { return is_stopping_; })) {
    lock.unlock();
    const auto error = Attempt([&] { RenewReplicaLease(database_, replica_); });
    if (error && !was_lost) spdlog::error("replica_lease_not_kept reason=\"{}\"", error->what());
    if (!error && was_lost) spdlog::info("replica_lease_kept");
    was_lost = error.has_value();
    lock.lock();
  }
  lock.unlock();
  // A failure costs only time: the lease expires.
  (void)Attempt([&] {
    Query query = database_.Prepare("DELETE FROM leases WHERE name = ?");
    const std::string name = NameOfReplicaLease(replica_);
    query.Bind(std::string_view(name));
    query.Next();
  });
}

}  // namespace tandem::server
