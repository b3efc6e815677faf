#include "engine/loop/kv_archive.h"

#include <chrono>
#include <system_error>

#include "engine/base/log.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr auto kKeepUnused = std::chrono::hours(24 * 14);
constexpr const char* kPrefix = "kv-";  // of the names of our directories

BlockFiles::Name NameOf(const Sha256Digest& key, size_t table) {
  if (table == 0) return key;
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(key)));
  hash.Update("table " + std::to_string(table));
  return hash.Finish();
}

// A model that changed, or that is no longer served, leaves its directory behind. A server in use
// writes new files, which changes the time of its directory.
void RemoveUnused(const fs::path& dir) {
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    std::error_code of_entry;
    if (at->path().filename().string().rfind(kPrefix, 0) != 0) continue;
    const auto used = at->last_write_time(of_entry);
    if (of_entry || now - used < kKeepUnused) continue;
    fs::remove_all(at->path(), of_entry);
    spdlog::info("prefix_cache_removed path={} reason=\"unused\"", at->path().string());
  }
}

BlockFiles::Options OptionsOf(const fs::path& dir, const Sha256Digest& salt, int64_t limit_bytes,
                              const KvCache& kv) {
  RemoveUnused(dir);
  const fs::path own = dir / (kPrefix + ToHex(salt).substr(0, 32));
  std::error_code ignored;
  fs::last_write_time(own, fs::file_time_type::clock::now(), ignored);
  return {.dir = own, .block_bytes = kv.shape().block_bytes(), .limit_bytes = limit_bytes};
}

}  // namespace

KvArchive::KvArchive(const fs::path& dir, const Sha256Digest& salt, int64_t limit_bytes,
                     KvCache& kv)
    : kv_(kv),
      files_(OptionsOf(dir, salt, limit_bytes, kv)),
      buffer_(static_cast<size_t>(kv.shape().block_bytes())) {}

bool KvArchive::Has(const Sha256Digest& key, size_t table) const {
  return files_.Has(NameOf(key, table));
}

void KvArchive::Save(const Sha256Digest& key, size_t table, BlockId block) {
  files_.Write(NameOf(key, table), [&](std::span<std::byte> to) { kv_.ReadBlock(block, to); });
}

bool KvArchive::Load(const Sha256Digest& key, size_t table, BlockId block) {
  if (!files_.Read(NameOf(key, table), buffer_)) return false;
  kv_.WriteBlock(block, buffer_);
  return true;
}

}  // namespace tandem::engine
