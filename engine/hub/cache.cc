#include "engine/hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <random>
#include <system_error>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/disk_full.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/io/atomic_write.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxRefBytes = 256;

void MakeDirectories(const fs::path& dir) {
  std::error_code failed;
  fs::create_directories(dir, failed);
  if (failed) ThrowSystemError("create", dir, failed.value());
}

std::string FolderName(const std::string& repo) {
  std::string name = "models--" + repo;
  name.replace(name.find('/'), 1, "--");
  return name;
}

std::optional<uint64_t> SizeOfRegularFile(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return static_cast<uint64_t>(status.st_size);
}

}  // namespace

HubCache::HubCache(fs::path cache_dir, const std::string& repo)
    : cache_dir_(std::move(cache_dir)),
      folder_name_(FolderName(repo)),
      folder_(cache_dir_ / folder_name_) {}

fs::path HubCache::BlobPath(const std::string& etag) const { return folder_ / "blobs" / etag; }

fs::path HubCache::IncompletePath(const std::string& etag) const {
  return folder_ / "blobs" / (etag + ".incomplete");
}

fs::path HubCache::SnapshotDir(const std::string& commit) const {
  return folder_ / "snapshots" / commit;
}

void HubCache::CreateFolders() const {
  MakeDirectories(folder_ / "blobs");
  MakeDirectories(folder_ / "refs");
  MakeDirectories(folder_ / "snapshots");
  MakeDirectories(cache_dir_ / ".locks" / folder_name_);
}

std::optional<std::string> HubCache::FindCommit(const std::string& revision) const {
  if (IsCommit(revision)) return revision;
  const fs::path path = folder_ / "refs" / revision;
  if (!SizeOfRegularFile(path)) return std::nullopt;
  std::string commit;
  // An unreadable or too large ref counts as unknown.
  if (ErrorOf([&] { commit = ReadWholeFile(path, kMaxRefBytes); })) return std::nullopt;
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == ' ')) commit.pop_back();
  return IsCommit(commit) ? std::optional(std::move(commit)) : std::nullopt;
}

void HubCache::WriteRef(const std::string& revision, const std::string& commit) const {
  if (IsCommit(revision) || FindCommit(revision) == commit) return;
  const fs::path path = folder_ / "refs" / revision;
  MakeDirectories(path.parent_path());
  WriteFileAtomically(path, commit);
}

std::optional<uint64_t> HubCache::FileSize(const std::string& commit,
                                           const std::string& name) const {
  return SizeOfRegularFile(SnapshotDir(commit) / name);
}

std::optional<uint64_t> HubCache::BlobSize(const std::string& etag) const {
  return SizeOfRegularFile(BlobPath(etag));
}

void HubCache::LinkFile(const std::string& commit, const std::string& name,
                        const std::string& etag) const {
  TANDEM_CHECK(IsCommit(commit) && IsSafeFileName(name));
  fs::path dir = SnapshotDir(commit);
  MakeDirectories(dir);
  std::string target = "../../blobs/" + etag;
  size_t begin = 0;
  for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', begin)) {
    dir /= name.substr(begin, slash - begin);
    begin = slash + 1;
    target.insert(0, "../");
    // Must be a real directory: a link could lead anywhere.
    struct stat status {};
    if (mkdir(dir.c_str(), 0777) != 0 && errno != EEXIST) {
      ThrowSystemError("create", dir, errno);
    }
    if (lstat(dir.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
      throw Error(ErrorCode::kDataLoss, dir.string() + " is not a directory");
    }
  }
  const fs::path path = dir / name.substr(begin);
  std::error_code ignored;
  if (fs::read_symlink(path, ignored) == target) return;

  std::random_device random;
  std::array<char, 24> suffix{};
  std::snprintf(suffix.data(), suffix.size(), ".tmp-%08x%08x", random(), random());
  fs::path temporary = path;
  temporary += suffix.data();
  if (symlink(target.c_str(), temporary.c_str()) != 0) {
    ThrowSystemError("create the link", temporary, errno);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(temporary.c_str());
    ThrowSystemError("rename to", path, error);
  }
}

std::optional<FileDescriptor> HubCache::TryLockBlob(const std::string& etag) const {
  const fs::path path = cache_dir_ / ".locks" / folder_name_ / (etag + ".lock");
  for (;;) {
    FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664));
    if (file.get() < 0) ThrowSystemError("open", path, errno);
    if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK || errno == EINTR) return std::nullopt;
      ThrowSystemError("lock", path, errno);
    }
    // Another process may have removed the file between open and lock.
    struct stat held {};
    struct stat named {};
    if (fstat(file.get(), &held) == 0 && stat(path.c_str(), &named) == 0 &&
        held.st_ino == named.st_ino && held.st_dev == named.st_dev) {
      return file;
    }
  }
}

std::string BlobNameOfEtag(std::string_view etag) {
  std::string_view name = etag;
  if (name.starts_with("W/")) name.remove_prefix(2);
  if (name.size() >= 2 && name.front() == '"' && name.back() == '"') {
    name = name.substr(1, name.size() - 2);
  }
  const bool is_plain = !name.empty() && name.size() <= 200 && name.front() != '.' &&
                        std::all_of(name.begin(), name.end(), [](char c) {
                          return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                                 (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
                        });
  if (!is_plain || name.ends_with(".incomplete")) {
    throw Error(ErrorCode::kDataLoss, "the hub sent the ETag '" + EscapeJson(etag.substr(0, 80)) +
                                          "', which is not usable as a file name in the cache");
  }
  return std::string(name);
}

void CheckFreeSpace(const fs::path& dir, uint64_t needed_bytes, uint64_t total_bytes,
                    const std::string& what) {
  const auto free_bytes = static_cast<uint64_t>(FreeDiskBytes(dir));
  if (needed_bytes <= free_bytes) return;
  throw Error(ErrorCode::kIo,
              what + " needs " + HumanBytes(needed_bytes) + " more (" + HumanBytes(total_bytes) +
                  " in total, " + HumanBytes(total_bytes - needed_bytes) +
                  " already fetched), but " + dir.string() + " has " + HumanBytes(free_bytes) +
                  " free: free some space, or set HF_HUB_CACHE to a folder on "
                  "another disk")
      .WithReason(kDiskFullReason);
}

std::string HumanBytes(uint64_t bytes) {
  static constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace tandem::engine
