#include "engine/loop/kv_archive.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <system_error>

#include "engine/base/log.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr auto kKeepUnused = std::chrono::hours(24 * 14);
constexpr std::string_view kPrefix = "kv-";  // of the names of our directories
constexpr size_t kDigits = 16;               // of each digest in a name
// Left free on the disk: a full one stops the server's jobs and logs, too.
constexpr int64_t kReserveBytes = 1LL << 30;

BlockFiles::Name NameOf(const Sha256Digest& key, size_t table) {
  if (table == 0) return key;
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(key)));
  hash.Update("table " + std::to_string(table));
  return hash.Finish();
}

std::string ModelPrefix(const KvArchive::Id& id) {
  return std::string(kPrefix) + ToHex(id.model).substr(0, kDigits);
}

// Whether a directory entry has exactly a name of ours.
bool IsOurs(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  std::error_code error;
  return name.size() == kPrefix.size() + 2 * kDigits && name.starts_with(kPrefix) &&
         std::all_of(name.begin() + kPrefix.size(), name.end(), is_digit) &&
         entry.symlink_status(error).type() == fs::file_type::directory;
}

// Our directories below `dir`; none where it cannot be listed.
std::vector<fs::directory_entry> OurDirectories(const fs::path& dir) {
  std::vector<fs::directory_entry> found;
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    if (IsOurs(*at)) found.push_back(*at);
  }
  return found;
}

void Remove(const fs::path& dir, const char* reason) {
  if (BlockDir::RemoveIfUnused(dir)) {
    spdlog::info("prefix_cache_removed path={} reason=\"{}\"", dir.string(), reason);
  }
}

// A model that is no longer served leaves its directory behind.
void RemoveUnused(const fs::path& dir, const fs::path& own) {
  const auto now = fs::file_time_type::clock::now();
  for (const fs::directory_entry& entry : OurDirectories(dir)) {
    std::error_code error;
    const auto used = entry.last_write_time(error);
    const bool is_old = !error && now - used >= kKeepUnused;
    if (is_old && entry.path() != own) Remove(entry.path(), "unused");
  }
}

int64_t BytesBelow(const fs::path& dir) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    std::error_code of_file;
    const auto size = at->file_size(of_file);
    if (!of_file) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

// The bytes that `own` may have of its model's limit. The directories of other builds keep what is
// left, the one used last first.
int64_t ShareOf(const fs::path& own, const std::string& model_prefix, int64_t limit_bytes,
                int64_t own_bytes) {
  struct Unused {
    fs::file_time_type used;
    fs::path path;
  };
  std::vector<Unused> unused;
  int64_t n_in_use = 1;
  for (const fs::directory_entry& entry : OurDirectories(own.parent_path())) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(model_prefix) || name == own.filename().string()) continue;
    std::error_code error;
    if (BlockDir::IsInUse(entry.path())) {
      ++n_in_use;
    } else {
      unused.push_back({entry.last_write_time(error), entry.path()});
    }
  }
  const int64_t share = limit_bytes / n_in_use;
  std::sort(unused.begin(), unused.end(),
            [](const Unused& a, const Unused& b) { return a.used > b.used; });
  int64_t room = share - own_bytes;
  for (const Unused& other : unused) {
    const int64_t bytes = BytesBelow(other.path);
    if (bytes > room) {
      Remove(other.path, "limit");
    } else {
      room -= bytes;
    }
  }
  return share;
}

BlockFiles::Options OptionsOf(const fs::path& dir, const KvArchive::Id& id, int64_t limit_bytes,
                              const KvCache& kv) {
  const std::string prefix = ModelPrefix(id);
  const fs::path own = dir / (prefix + ToHex(id.salt).substr(0, kDigits));
  RemoveUnused(dir, own);
  return {.dir = own,
          .block_bytes = kv.shape().block_bytes(),
          .limit_bytes = limit_bytes,
          .reserve_bytes = kReserveBytes,
          .share = [own, prefix, limit_bytes](int64_t own_bytes) {
            return ShareOf(own, prefix, limit_bytes, own_bytes);
          }};
}

}  // namespace

KvArchive::KvArchive(const fs::path& dir, const Id& id, int64_t limit_bytes, KvCache& kv)
    : kv_(kv),
      files_(OptionsOf(dir, id, limit_bytes, kv)),
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
