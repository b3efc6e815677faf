#pragma once

#include <cstdint>

namespace tandem {

// More layers than any known model has: what a file may claim, whoever wrote it.
inline constexpr int64_t kMaxModelLayers = 1024;

}  // namespace tandem
