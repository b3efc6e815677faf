#pragma once

#include <cstdint>

namespace tandem {

// Limit for the layer count that any file may claim; no known model has more.
inline constexpr int64_t kMaxModelLayers = 1024;

}  // namespace tandem
