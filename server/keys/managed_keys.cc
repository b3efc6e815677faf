#include "server/keys/managed_keys.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/out_of_memory.h"

namespace tandem::server {

ManagedKeys::ManagedKeys(Options options, ApiKeys& keys, const KeyUsage& usage)
    : options_(std::move(options)), keys_(keys), usage_(usage) {
  {
    const std::lock_guard lock(mutex_);
    OpenCurrent(options_.must_exist);
    Reload();
  }
  thread_ = std::thread([this] { Run(); });
}

ManagedKeys::~ManagedKeys() {
  {
    const std::lock_guard lock(stop_mutex_);
    is_stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

std::optional<ManagedKeys::FileIdentity> ManagedKeys::Identity() const {
  struct stat status {};
  if (::stat(options_.file.c_str(), &status) == 0) {
    return FileIdentity{status.st_dev, status.st_ino};
  }
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  throw Error(ErrorCode::kIo, "could not look at " + options_.file.string() + ": " +
                                  std::generic_category().message(errno));
}

// Opens the file that now has the name: a restored backup is another file than the open one.
void ManagedKeys::OpenCurrent(bool create) {
  if (options_.shared.is_shared()) {
    if (!store_) store_ = std::make_unique<KeyStore>(options_.shared);
    return;
  }
  const std::optional<FileIdentity> now = Identity();
  if (!now && !create) {
    if (!store_) return;
    throw Error(ErrorCode::kIo, options_.file.string() + " is missing");
  }
  if (store_ && now == opened_) return;
  store_ = std::make_unique<KeyStore>(options_.file);
  opened_ = Identity();
  change_count_.reset();
}

void ManagedKeys::Reload() {
  if (!store_) return;
  const int64_t count = store_->ChangeCount();
  if (change_count_ == count) return;
  std::vector<KeyRecord> records = store_->List();
  std::vector<ManagedKey> valid;
  for (const KeyRecord& key : records) {
    if (!key.revoked_at) valid.push_back({key.digest, key.scopes, key.expires_at});
  }
  // Revoked keys count: revoking the last key must not open the server to everybody.
  keys_.SetManagedKeys(std::move(valid), !records.empty());
  change_count_ = count;
  const std::lock_guard lock(records_mutex_);
  records_ = std::move(records);
}

void ManagedKeys::RefreshLocked() {
  OpenCurrent(false);
  Reload();
}

void ManagedKeys::Refresh() {
  const std::lock_guard lock(mutex_);
  RefreshLocked();
}

CreatedKey ManagedKeys::Create(const NewKey& about) {
  const std::lock_guard lock(mutex_);
  OpenCurrent(true);
  CreatedKey created = store_->Create(about);
  change_count_.reset();  // does not count changes of this connection
  Reload();
  return created;
}

KeyRecord ManagedKeys::Revoke(const std::string& id_or_name) {
  const std::lock_guard lock(mutex_);
  OpenCurrent(true);
  KeyRecord key = store_->Revoke(id_or_name);
  change_count_.reset();
  Reload();
  return key;
}

std::vector<KeyRecord> ManagedKeys::List() const {
  const std::lock_guard lock(records_mutex_);
  return records_;
}

// A full or read-only disk must not disturb the server: last_used_at is a convenience.
void ManagedKeys::NoteUses() {
  if (!store_) return;
  for (const KeyRecord& key : List()) {
    const int64_t used_at = usage_.Of(key.digest[0]).last_used_at;
    if (used_at == 0) continue;
    store_->NoteUse(key, used_at);
    const int64_t noted = used_at - used_at % KeyStore::kUseGranularityS;
    const std::lock_guard lock(records_mutex_);
    for (KeyRecord& record : records_) {
      if (record.id == key.id)
        record.last_used_at = std::max(noted, record.last_used_at.value_or(0));
    }
  }
}

void ManagedKeys::Run() {
  for (;;) {
    {
      std::unique_lock lock(stop_mutex_);
      if (stop_.wait_for(lock, options_.interval, [this] { return is_stopping_; })) return;
    }
    const std::lock_guard lock(mutex_);
    const auto fault = Attempt([&] {
      RefreshLocked();
      NoteUses();
    });
    // Without memory for the report, the next round makes it.
    HasMemoryFor([&] { ReportFault(fault ? fault->what() : std::string_view()); });
  }
}

// Logs a fault once, until another one or none follows.
void ManagedKeys::ReportFault(std::string_view text) {
  if (text == last_fault_) return;
  if (!text.empty()) {
    spdlog::error("api_keys_db_unusable kept_keys=true reason=\"{}\"", text);
  }
  last_fault_ = text;
}

}  // namespace tandem::server
