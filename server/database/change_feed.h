#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "server/database/database.h"
#include "server/database/replica_lease.h"

namespace tandem::server {

class PostgresConnection;

// Follows the changes that other replicas make to a shared database, and shows them that this one
// lives (ReplicaLease). PostgreSQL notifies within milliseconds. A look at the counts of changes
// every second finds those that a lost connection has missed. Owns two threads.
class ChangeFeed {
 public:
  // Called on the feed's thread with the name of a changed table, also for changes of this process,
  // and once for every table at the start. With "leases" also every five seconds: a replica may
  // have ended. If it throws, it is called again after a second.
  using OnChange = std::function<void(const std::string& table)>;

  // `replica` names this process (NameOfReplicaLease). Throws as PostgresConnection.
  ChangeFeed(const DatabaseSource& source, std::string replica, OnChange on_change);
  ~ChangeFeed();  // Stop()
  // The lease of the replica is held and kept from the construction on, the callbacks begin here.
  void Start();
  ChangeFeed(const ChangeFeed&) = delete;
  ChangeFeed& operator=(const ChangeFeed&) = delete;

  // No callback runs afterwards. The other replicas count this one as gone.
  void Stop();

 private:
  void Run();
  std::set<std::string> Look();
  void Tell(std::set<std::string> tables);

  const OnChange on_change_;
  // The thread's, to wake_fd_.
  Database database_;
  const std::unique_ptr<PostgresConnection> connection_;  // listens
  std::map<std::string, int64_t> seen_;                   // counts of changes
  int64_t n_looks_ = 0;
  std::set<std::string> failed_;  // to be told again
  ReplicaLease lease_;
  const int wake_fd_;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace tandem::server
