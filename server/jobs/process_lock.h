#pragma once

#include <filesystem>
#include <string>

#include "server/jobs/unique_fd.h"

namespace tandem::server {

// Locks `file` (flock) for as long as the returned descriptor lives and writes this process's pid
// into it. The kernel drops the lock when the process ends, however it ends. When another process
// holds it, throws kFailedPrecondition with reason in_use: "<what> is in use by process <pid>:
// <advice>". Throws as ThrowIo when the file cannot be opened. Any thread.
UniqueFd LockForThisProcess(const std::filesystem::path& file, const std::string& what,
                            const std::string& advice);

// The lock of a run's or job's directory, DIR/work.lock: one process at a time works in it. Not
// run.lock, which ChildProcess holds for the same process.
UniqueFd LockRunDirectory(const std::filesystem::path& dir);

}  // namespace tandem::server
