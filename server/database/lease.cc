#include "server/database/lease.h"

#include <utility>

#include "engine/base/error.h"

namespace tandem::server {

Lease::Lease(Database& database, std::string name, std::string owner)
    : database_(database), name_(std::move(name)), owner_(std::move(owner)) {}

// One statement: two servers may ask at the same time.
bool Lease::TakeOrKeep(std::chrono::milliseconds duration) {
  Query query = database_.Prepare(
      "INSERT INTO leases (name, owner, epoch, expires_at) VALUES (?1, ?2, 1, {now_ms} + ?3) "
      "ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at, "
      "epoch = leases.epoch + CASE WHEN leases.owner = excluded.owner THEN 0 ELSE 1 END "
      "WHERE leases.owner = excluded.owner OR leases.expires_at <= {now_ms} RETURNING epoch");
  query.Bind(std::string_view(name_)).Bind(std::string_view(owner_));
  query.Bind(static_cast<int64_t>(duration.count()));
  is_held_ = query.Next();
  if (!is_held_) return false;
  epoch_ = query.Int();
  while (query.Next()) {
  }
  return true;
}

// Locks the row until the transaction ends, so that nobody takes the lease in between.
void Lease::Require() {
  Query query = database_.Prepare(
      "UPDATE leases SET epoch = epoch WHERE name = ? AND owner = ? AND epoch = ?");
  query.Bind(std::string_view(name_)).Bind(std::string_view(owner_)).Bind(epoch_);
  query.Next();
  if (is_held_ && database_.changes() == 1) return;
  is_held_ = false;
  throw Error(ErrorCode::kUnavailable, "another server has taken over '" + name_ + "'")
      .WithReason("lease_lost");
}

void Lease::Release() {
  if (!std::exchange(is_held_, false)) return;
  Query query = database_.Prepare(
      "UPDATE leases SET expires_at = 0 WHERE name = ? AND owner = ? AND epoch = ?");
  query.Bind(std::string_view(name_)).Bind(std::string_view(owner_)).Bind(epoch_);
  query.Next();
}

}  // namespace tandem::server
