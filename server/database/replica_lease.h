#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "server/database/database.h"

namespace tandem::server {

// Every living replica has a lease in the database and prolongs it every second. The work that a
// replica does itself ends with its lease.
//
// While the database is away, all leases expire although every replica lives. So an expired lease
// means something only if another replica has prolonged its own within the last five seconds. The
// first one that does so after a gap gives each expired lease a whole period more.
inline constexpr std::chrono::milliseconds kReplicaLeaseDuration{10'000};
inline constexpr std::chrono::milliseconds kRenewReplicaLeaseEvery{1000};

std::string NameOfReplicaLease(std::string_view replica);
// A statement's condition on the column `replica`: null, or not alive.
inline constexpr const char* kReplicaIsGone =
    "(replica IS NULL OR NOT EXISTS (SELECT 1 FROM leases WHERE leases.name = 'replica/' || "
    "replica AND (leases.expires_at > {now_ms} OR NOT EXISTS (SELECT 1 FROM leases AS fresh "
    "WHERE fresh.name LIKE 'replica/%' AND fresh.expires_at > {now_ms} + 5000))))";

// Takes or prolongs the lease of a replica, and after a gap those of all. Throws as Database.
void RenewReplicaLease(Database& database, std::string_view replica);

// Keeps the lease of this process. Owns one thread and one connection, so that slow work of the
// other threads costs no lease.
class ReplicaLease {
 public:
  // The lease is held at return. Throws as Database.
  ReplicaLease(const DatabaseSource& source, std::string replica);
  ~ReplicaLease();  // Stop()
  ReplicaLease(const ReplicaLease&) = delete;
  ReplicaLease& operator=(const ReplicaLease&) = delete;

  // Gives the lease up: the other replicas count this one as gone.
  void Stop();

 private:
  void Run();

  const std::string replica_;
  Database database_;  // the thread's
  std::mutex mutex_;   // guards the next
  bool is_stopping_ = false;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace tandem::server
