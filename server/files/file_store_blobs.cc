// The files of a remote BlobStore.

#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "server/files/file_store.h"

namespace tandem::server {
namespace {

// Each upload has a new name: an earlier one of the same file may be removed at the same time.
std::string NewBlobName(const std::string& id) {
  return "files/" + id + "-" + FileStore::NewId().substr(std::string_view("file-").size(), 8);
}

}  // namespace

// Publishes the bytes, not yet the row.
void FileStore::Publish(TemporaryFile temporary, StoredFile& file) {
  const std::filesystem::path path = PathOf(file.id);
  MakeRoom(file.bytes);
  temporary.Publish(path);
  if (!blobs_->is_remote()) return;
  file.blob = NewBlobName(file.id);
  {
    const std::lock_guard lock(mutex_);
    garbage_.Begin(file.blob);
  }
  UndoOnFailure([&] { file.sha256 = blobs_->Put(file.blob, path); },
                [&] {
                  const std::lock_guard lock(mutex_);
                  garbage_.Abandon(file.blob);
                });
}

// Lists a file whose bytes are published.
void FileStore::ListFile(const StoredFile& file) {
  if (!blobs_->is_remote()) return Insert(file);
  UndoOnFailure(
      [&] {
        const auto held = HoldFiles();
        garbage_.Keep(file.blob);
        Insert(file);
        held->Commit();
      },
      [&] { garbage_.Abandon(file.blob); });
}

// Forgets a file of the object store. Its object is garbage from here on, and goes outside the
// lock.
void FileStore::RemoveRow(const std::string& id) {
  const std::unique_ptr<Hold> own = is_held_ ? nullptr : HoldFiles();
  std::optional<std::string> blob;
  {
    Query query = database_.Prepare("SELECT blob FROM files WHERE id = ?");
    query.Bind(std::string_view(id));
    if (query.Next()) blob = query.TextOrNull();
  }
  Query query = database_.Prepare("DELETE FROM files WHERE id = ?");
  query.Bind(std::string_view(id));
  query.Next();
  if (blob) garbage_.Add(*blob);
  if (own) own->Commit();
  cache_.Forget(id);
}

// Also for a file that has expired: unfinished work may read it.
LocalBlob FileStore::Local(const std::string& id) {
  if (!blobs_->is_remote()) return {.path = PathOf(id)};
  std::string name;
  BlobContent content;
  {
    const std::lock_guard lock(mutex_);
    Query query = database_.Prepare("SELECT bytes, blob, sha256 FROM files WHERE id = ?");
    query.Bind(std::string_view(id));
    if (!query.Next()) {
      throw Error(ErrorCode::kNotFound, "there is no file '" + id.substr(0, 80) + "'")
          .WithParam("id")
          .WithReason("file_not_found");
    }
    content.bytes = query.Int();
    name = query.TextOrNull().value_or("");
    content.sha256 = query.TextOrNull().value_or("");
  }
  return cache_.Get(id, content.bytes, [&](const std::filesystem::path& to) {
    if (name.empty()) {
      throw Error(ErrorCode::kDataLoss, "file '" + id +
                                            "' was uploaded without --blob-store, so no object "
                                            "has its bytes: upload it again");
    }
    MakeRoom(content.bytes);
    blobs_->Fetch(name, content, to);
  });
}

// Files that unfinished work reads stay in the cache.
void FileStore::MakeRoom(int64_t extra) {
  if (!blobs_->is_remote()) return;
  const std::lock_guard lock(mutex_);
  cache_.MakeRoom(extra, [this](const std::string& name) {
    return !options_.is_in_use || !options_.is_in_use(name);
  });
}

void FileStore::CollectGarbage() {
  if (!blobs_->is_remote()) return;
  const auto error = ErrorOf([&] {
    const std::lock_guard collecting(collect_mutex_);
    std::vector<std::string> names;
    {
      const std::lock_guard lock(mutex_);
      names = garbage_.Claim();
    }
    for (const std::string& name : names) {
      blobs_->Remove(name);
      const std::lock_guard lock(mutex_);
      garbage_.Forget(name);
    }
  });
  if (error) spdlog::warn("blob_garbage_kept reason=\"{}\"", error->what());
}

}  // namespace tandem::server
