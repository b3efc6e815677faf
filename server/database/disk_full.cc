#include "server/database/disk_full.h"

#include <cerrno>

#include "engine/base/error.h"

namespace tandem::server {

bool IsDiskFull(int error_number) {
  return error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
}

void ThrowDiskFull() {
  throw Error(ErrorCode::kUnavailable,
              "the disk of the server is full: delete files or checkpoints that are no longer "
              "needed, then try again")
      .WithReason("insufficient_storage");
}

}  // namespace tandem::server
