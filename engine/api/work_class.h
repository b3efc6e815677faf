#pragma once

#include <cstdint>

namespace tandem {

// The class of a request. Interactive requests go before batch requests for places, KV blocks and
// prompt tokens of a step; batch requests get what is left.
enum class WorkClass : uint8_t { kInteractive, kBatch };
inline constexpr int kWorkClasses = 2;

}  // namespace tandem
