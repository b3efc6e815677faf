#pragma once

#include <cerrno>

namespace tandem {

// Error::reason() of a kIo whose cause is a full disk: the server answers 507.
inline constexpr const char* kDiskFullReason = "insufficient_storage";

// Whether a system call failed because the disk, the quota or the file size limit is exhausted.
inline bool IsDiskFull(int error_number) {
  return error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
}

}  // namespace tandem
