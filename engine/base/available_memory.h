#pragma once

#include <cstdint>

namespace tandem {

// Bytes that this process can still allocate: the kernel's MemAvailable or the rest of the cgroup's
// limit, whichever is smaller. Linux; any thread.
int64_t AvailableMemoryBytes();

}  // namespace tandem
