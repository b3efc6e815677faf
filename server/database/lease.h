#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/database/database.h"

namespace tandem::server {

// A right that at most one server has at a time: a row with its owner and an expiry by the
// database's clock, so the clocks of the servers do not matter. A server that is killed loses the
// lease at its expiry.
//
// `epoch` is the fencing token: it grows with every new owner. A change that needs the lease calls
// Require in its transaction; so an owner that has slept beyond its expiry cannot write. For one
// thread at a time, as the database. Methods throw as Database.
class Lease {
 public:
  // The database must outlive it. `owner` names this process, not the machine.
  Lease(Database& database, std::string name, std::string owner);
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // Takes a free or expired lease, or prolongs ours. Returns whether we have it for `duration`.
  bool TakeOrKeep(std::chrono::milliseconds duration);
  // Throws kUnavailable (lease_lost) if another server has taken the lease. None takes it until the
  // end of the transaction. REQUIRES: a transaction.
  void Require();
  // Gives the lease to whoever asks next.
  void Release();

  bool is_held() const { return is_held_; }
  int64_t epoch() const { return epoch_; }

 private:
  Database& database_;
  const std::string name_;
  const std::string owner_;
  bool is_held_ = false;
  int64_t epoch_ = 0;
};

}  // namespace tandem::server
