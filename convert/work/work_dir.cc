#include "convert/work/work_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "engine/base/attempt.h"
#include "engine/base/error.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIdentityFile = "conversion.json";
constexpr const char* kPublishing = "published\n";  // never equal to an identity
constexpr size_t kMaxIdentityBytes = 64 << 20;

fs::path Beside(const fs::path& target) {
  fs::path path = target;
  path += ".part";
  return path;
}

// Creates the directory if needed and locks it. Retries when another conversion removes it in
// between.
engine::FileDescriptor Lock(const fs::path& path) {
  for (;;) {
    if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
      engine::ThrowSystemError("create", path, errno);
    }
    engine::FileDescriptor dir(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (dir.get() < 0 && errno == ENOENT) continue;
    if (dir.get() < 0) engine::ThrowSystemError("open", path, errno);
    if (flock(dir.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw Error(
          ErrorCode::kUnavailable,
          path.string() +
              ": another conversion is writing this target; wait for it, or choose another name");
    }
    struct stat held {};
    struct stat named {};
    if (fstat(dir.get(), &held) != 0) engine::ThrowSystemError("inspect", path, errno);
    if (stat(path.c_str(), &named) != 0) continue;
    if (held.st_ino == named.st_ino && held.st_dev == named.st_dev) return dir;
  }
}

// Accepts a directory whose writer was killed before the identity file had its final name.
bool IsOurs(const fs::path& path) {
  if (fs::is_regular_file(path / kIdentityFile)) return true;
  return std::all_of(fs::directory_iterator(path), fs::directory_iterator(), [](const auto& entry) {
    return entry.path().filename().string().starts_with(kIdentityFile);
  });
}

void SyncFiles(const fs::path& path) {
  if (!fs::is_directory(path)) return engine::SyncPath(path);
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file() && !entry.is_symlink()) engine::SyncPath(entry.path());
  }
}

}  // namespace

WorkDir::WorkDir(const fs::path& target)
    : target_(target), path_(Beside(target)), lock_(Lock(path_)) {
  if (IsOurs(path_)) return;
  throw Error(ErrorCode::kAlreadyExists, path_.string() +
                                             " exists and is not an unfinished conversion: remove "
                                             "it, or choose another name for the target")
      .WithParam("target.name")
      .WithReason("already_exists");
}

WorkDir::~WorkDir() {
  if (is_kept_) return;
  // After a failure the next conversion of this target tries again.
  FaultOf([&] {
    Clear();
    fs::remove(path_);
  });
}

bool WorkDir::Begin(const std::string& identity) {
  const fs::path file = path_ / kIdentityFile;
  if (fs::exists(file) && engine::ReadWholeFile(file, kMaxIdentityBytes) == identity) {
    const std::set<fs::path> kept = {kIdentityFile, kJournalFile, kMergedDir, kOut};
    for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
      if (!kept.contains(entry.path().filename())) fs::remove_all(entry.path());
    }
    return true;
  }
  Clear();
  engine::WriteFileAtomically(file, identity);
  return false;
}

// Removes the identity last: without it the remaining files could not be recognised.
void WorkDir::Clear() {
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    if (entry.path().filename() != kIdentityFile) fs::remove_all(entry.path());
  }
  fs::remove(path_ / kIdentityFile);
}

bool WorkDir::IsBegun() const { return !is_publishing_ && fs::exists(path_ / kJournalFile); }

void WorkDir::Publish(engine::IfThere if_there) {
  // Syncing may take long; a kill during it loses nothing.
  SyncFiles(out());
  is_publishing_ = true;
  engine::WriteFileAtomically(path_ / kIdentityFile, kPublishing);
  engine::PublishPath(out(), target_, if_there);
}

void RemoveUnfinished(const fs::path& target) {
  if (!fs::exists(fs::symlink_status(Beside(target)))) return;
  const WorkDir removed(target);  // its destructor removes the directory
}

}  // namespace tandem::convert
