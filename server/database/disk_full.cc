#include "server/database/disk_full.h"

#include "engine/base/error.h"

namespace tandem::server {

void ThrowDiskFull() {
  throw Error(ErrorCode::kUnavailable,
              "the server's disk is full: delete unneeded files or checkpoints, then try again")
      .WithReason(kDiskFullReason);
}

}  // namespace tandem::server
