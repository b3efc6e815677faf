#pragma once

#include "engine/base/disk_full.h"

namespace tandem::server {

// Throws kUnavailable with reason insufficient_storage: the client gets 507.
[[noreturn]] void ThrowDiskFull();

}  // namespace tandem::server
