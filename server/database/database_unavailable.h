#pragma once

namespace tandem::server {

// Error::reason() of a kUnavailable for want of the database that replicas share. Requests get 503;
// lasting work waits until the database is back.
inline constexpr const char* kDatabaseUnavailableReason = "database_unavailable";

}  // namespace tandem::server
