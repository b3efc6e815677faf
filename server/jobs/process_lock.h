#pragma once

#include <filesystem>
#include <string>

#include "server/jobs/job_files.h"
#include "server/jobs/unique_fd.h"

namespace tandem::server {

// Locks `file` (flock) during the lifetime of the returned descriptor, and writes this process's
// pid into it. The kernel drops the lock when the process ends. If another process holds it, throws
// kFailedPrecondition with reason in_use: "<what> is in use by process <pid>: <advice>". Throws as
// TryLockFile if the file cannot be opened or locked. Any thread.
UniqueFd LockForThisProcess(const std::filesystem::path& file, const std::string& what,
                            const std::string& advice, WithoutLocks without);

// As above, but any number of replicas may have the lock at the same time. Throws
// kFailedPrecondition (in_use) if a server without --database has it.
UniqueFd LockForReplicas(const std::filesystem::path& file, const std::string& what);

// Locks the directory of a run or job, DIR/work.lock, for one process. On a file system without
// locks it only warns, so that training on a cluster's file system works. The separate run.lock of
// ChildProcess guards the same process.
UniqueFd LockRunDirectory(const std::filesystem::path& dir);

}  // namespace tandem::server
