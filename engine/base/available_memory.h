#pragma once

#include <cstdint>

namespace tandem {

// Bytes that this process may still take without pushing others out: what the kernel says is
// available, or what the cgroup leaves where that is less. Linux; any thread.
int64_t AvailableMemoryBytes();

}  // namespace tandem
