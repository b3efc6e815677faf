#include "server/blobs/blob_cache.h"

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "engine/io/posix_file.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFetchSuffix = ".fetch";

// 0: there is no such file.
int64_t BytesAt(const fs::path& path) {
  std::error_code absent;
  const uintmax_t bytes = fs::file_size(path, absent);
  return absent ? 0 : static_cast<int64_t>(bytes);
}

}  // namespace

BlobCache::BlobCache(fs::path dir, int64_t max_bytes)
    : dir_(std::move(dir)), max_bytes_(max_bytes) {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  for (const auto& entry : fs::directory_iterator(dir_)) {
    const std::string name = entry.path().filename();
    std::error_code ignored;
    if (name.find(kFetchSuffix) != std::string::npos) {
      fs::remove(entry.path(), ignored);
    } else if (entry.is_regular_file(ignored)) {
      found.emplace_back(entry.last_write_time(ignored), name);
    }
  }
  std::sort(found.begin(), found.end());
  for (const auto& [time, name] : found) entries_[name].last_use = ++uses_;
}

bool BlobCache::IsThere(const std::string& name, int64_t bytes) const {
  std::error_code absent;
  return fs::is_regular_file(dir_ / name, absent) && BytesAt(dir_ / name) == bytes;
}

LocalBlob BlobCache::Get(const std::string& name, int64_t bytes, const Fetch& fetch) {
  std::unique_lock lock(mutex_);
  if (IsThere(name, bytes)) return PinLocked(name);
  if (const auto found = loading_.find(name); found != loading_.end()) {
    const std::shared_ptr<Loading> other = found->second;
    loaded_.wait(lock, [&] { return other->has_ended; });
    if (other->error) throw Error(*other->error);
    return PinLocked(name);
  }
  const auto loading = std::make_shared<Loading>();
  loading_.emplace(name, loading);
  LocalBlob blob = PinLocked(name);
  lock.unlock();
  loading->error = Attempt([&] { Load(name, fetch); });
  lock.lock();
  loading->has_ended = true;
  loading_.erase(name);
  loaded_.notify_all();
  if (!loading->error) return blob;
  lock.unlock();  // the pin's end takes it
  throw Error(*loading->error);
}

void BlobCache::Load(const std::string& name, const Fetch& fetch) const {
  const fs::path to = dir_ / (name + kFetchSuffix);
  UndoOnFailure(
      [&] {
        fetch(to);
        std::error_code failed;
        fs::rename(to, dir_ / name, failed);
        if (failed) engine::ThrowSystemError("rename", to, failed.value());
      },
      [&] {
        std::error_code ignored;
        fs::remove(to, ignored);
      });
}

LocalBlob BlobCache::Pin(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return PinLocked(name);
}

// REQUIRES: mutex_ held.
LocalBlob BlobCache::PinLocked(const std::string& name) {
  Entry& entry = entries_[name];
  entry.last_use = ++uses_;
  ++entry.pins;
  return {dir_ / name, std::shared_ptr<void>(this, [name](void* cache) {
            static_cast<BlobCache*>(cache)->Unpin(name);
          })};
}

void BlobCache::Unpin(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(name);
  if (entry != entries_.end()) --entry->second.pins;
}

void BlobCache::Forget(const std::string& name) {
  std::error_code ignored;
  fs::remove(dir_ / name, ignored);
}

void BlobCache::MakeRoom(int64_t extra, const MayEvict& may_evict) {
  const std::lock_guard lock(mutex_);
  int64_t total = extra;
  std::vector<std::pair<uint64_t, std::string>> by_age;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const int64_t bytes = BytesAt(dir_ / entry->first);
    total += bytes;
    if (entry->second.pins == 0 && bytes == 0) {  // removed, or never fetched
      entry = entries_.erase(entry);
      continue;
    }
    if (entry->second.pins == 0) by_age.emplace_back(entry->second.last_use, entry->first);
    ++entry;
  }
  std::sort(by_age.begin(), by_age.end());
  for (const auto& [last_use, name] : by_age) {
    if (total <= max_bytes_) return;
    if (!may_evict(name)) continue;
    const int64_t bytes = BytesAt(dir_ / name);
    std::error_code failed;
    fs::remove(dir_ / name, failed);
    if (failed) continue;
    entries_.erase(name);
    total -= bytes;
    spdlog::info("blob_evicted name={} bytes={}", name, bytes);
  }
}

}  // namespace tandem::server
