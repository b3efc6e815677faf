#include "server/jobs/process_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <optional>
#include <utility>

#include "engine/base/error.h"

namespace tandem::server {

UniqueFd LockForThisProcess(const std::filesystem::path& file, const std::string& what,
                            const std::string& advice, WithoutLocks without) {
  std::optional<UniqueFd> lock = TryLockFile(file, without);
  if (!lock) {
    int64_t pid = 0;
    std::ifstream(file) >> pid;
    throw Error(ErrorCode::kFailedPrecondition,
                what + " is in use by " +
                    (pid > 0 ? "process " + std::to_string(pid) : "another process") + ": " +
                    advice)
        .WithReason("in_use");
  }
  // The pid serves only the message above. A full disk must not keep a run from starting.
  const std::string pid = std::to_string(::getpid()) + "\n";
  [[maybe_unused]] const bool is_written =
      ::ftruncate(lock->get(), 0) == 0 &&
      ::pwrite(lock->get(), pid.data(), pid.size(), 0) == static_cast<ssize_t>(pid.size());
  return std::move(*lock);
}

UniqueFd LockForReplicas(const std::filesystem::path& file, const std::string& what) {
  UniqueFd lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) ThrowIo("open", file, errno);
  while (::flock(lock.get(), LOCK_SH | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) ThrowIo("lock", file, errno);
    throw Error(ErrorCode::kFailedPrecondition,
                what +
                    " is in use by a server without --database: stop it, or choose another "
                    "--data-dir")
        .WithReason("in_use");
  }
  return lock;
}

UniqueFd LockRunDirectory(const std::filesystem::path& dir) {
  return LockForThisProcess(dir / "work.lock", "run directory " + dir.string(),
                            "wait until it ends, or choose another run_name or directory",
                            WithoutLocks::kContinue);
}

}  // namespace tandem::server
