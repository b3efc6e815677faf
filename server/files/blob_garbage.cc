#include "server/files/blob_garbage.h"

#include <string_view>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "server/blobs/blob_store.h"
#include "server/database/replica_lease.h"

namespace tandem::server {
namespace {

constexpr int64_t kMostAtOnce = 100;

}  // namespace

void BlobGarbage::Run(const char* sql, const std::string& name) {
  Query query = database_.Prepare(sql);
  query.Bind(std::string_view(name));
  query.Next();
}

void BlobGarbage::Begin(const std::string& name) {
  Query query = database_.Prepare("INSERT INTO blob_garbage (name, replica) VALUES (?, ?)");
  query.Bind(std::string_view(name)).Bind(std::string_view(replica_));
  query.Next();
}

void BlobGarbage::Keep(const std::string& name) {
  Query query = database_.Prepare("DELETE FROM blob_garbage WHERE name = ? AND replica = ?");
  query.Bind(std::string_view(name)).Bind(std::string_view(replica_));
  query.Next();
  if (database_.changes() == 1) return;
  throw Error(ErrorCode::kUnavailable,
              "this server could not reach the database for so long that others have removed the "
              "upload: upload the file again")
      .WithReason(kBlobStoreUnavailableReason);
}

void BlobGarbage::Abandon(const std::string& name) noexcept {
  const auto error = Attempt([&] {
    Query query =
        database_.Prepare("UPDATE blob_garbage SET replica = NULL WHERE name = ? AND replica = ?");
    query.Bind(std::string_view(name)).Bind(std::string_view(replica_));
    query.Next();
  });
  if (error) spdlog::warn("blob_not_abandoned name={} reason=\"{}\"", name, error->what());
}

void BlobGarbage::Add(const std::string& name) {
  Run("INSERT INTO blob_garbage (name, replica) VALUES (?, NULL)", name);
}

// The owner is removed first: an upload that ends now fails in Keep, before its object goes. Most
// calls find nothing, and then write nothing that would wake the other replicas.
std::vector<std::string> BlobGarbage::Claim() {
  const std::string is_gone(kReplicaIsGone);
  Query look = database_.Prepare("SELECT 1 FROM blob_garbage WHERE " + is_gone + " LIMIT 1");
  if (!look.Next()) return {};
  Query claim = database_.Prepare(
      "UPDATE blob_garbage SET replica = NULL WHERE replica IS NOT NULL AND " + is_gone);
  claim.Next();
  Query query = database_.Prepare(
      "SELECT name FROM blob_garbage WHERE replica IS NULL ORDER BY name LIMIT ?");
  query.Bind(kMostAtOnce);
  std::vector<std::string> names;
  while (query.Next()) names.push_back(query.Text());
  return names;
}

void BlobGarbage::Forget(const std::string& name) {
  Run("DELETE FROM blob_garbage WHERE name = ? AND replica IS NULL", name);
}

}  // namespace tandem::server
