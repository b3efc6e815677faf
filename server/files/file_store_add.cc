// How a file comes into FileStore.

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "server/database/database_unavailable.h"
#include "server/files/file_store.h"

namespace tandem::server {

StoredFile FileStore::Add(TemporaryFile temporary, const NewFile& about) {
  StoredFile file;
  file.id = about.id.empty() ? NewId() : about.id;
  file.bytes = temporary.bytes();
  file.filename = about.filename;
  file.purpose = about.purpose;
  file.owner = about.owner;
  const LocalBlob pinned = cache_.Pin(file.id);
  const auto fault = FaultOf([&] {
    Publish(std::move(temporary), file);  // outside the lock: it can take seconds
    const std::lock_guard lock(mutex_);
    file.created_at = Now();
    if (about.expires_after_s) file.expires_at = file.created_at + *about.expires_after_s;
    ListFile(file);
    if (file.expires_at) next_expiry_ = std::min(next_expiry_, *file.expires_at);
  });
  if (fault) {
    // In a shared directory another replica may list a chosen id at any time, also while we look.
    const bool is_ours_alone =
        about.id.empty() || !options_.shared.is_shared() || blobs_->is_remote();
    if (is_ours_alone) RemoveUnlisted(file.id, ToError(fault));
    std::rethrow_exception(fault);
  }
  const std::lock_guard lock(mutex_);
  RemoveExpired();
  spdlog::info("file_stored id={} bytes={} purpose={}", file.id, file.bytes, file.purpose);
  return file;
}

// Keeps the bytes unless the table is known to have no such row: the row may be stored although the
// answer to it was lost.
void FileStore::RemoveUnlisted(const std::string& id, const Error& why) {
  if (why.reason() == kDatabaseUnavailableReason) return;
  const auto error = Attempt([&] {
    const std::lock_guard lock(mutex_);
    Query query = database_.Prepare("SELECT 1 FROM files WHERE id = ?");
    query.Bind(std::string_view(id));
    std::error_code ignored;
    if (!query.Next()) std::filesystem::remove(PathOf(id), ignored);
  });
  if (error) spdlog::warn("file_bytes_kept id={} reason=\"{}\"", id, error->what());
}

}  // namespace tandem::server
