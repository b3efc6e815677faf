#pragma once

namespace tandem::server {

// Whether a system call failed because the disk, the quota or the file size limit is exhausted.
bool IsDiskFull(int error_number);

// Throws kUnavailable with reason insufficient_storage: the client gets 507.
[[noreturn]] void ThrowDiskFull();

}  // namespace tandem::server
