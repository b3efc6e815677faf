#pragma once

#include <cstdint>

namespace tandem::engine {

// Tokens per KV block: one panel of keys, so a block is written and scored without rearrangement.
inline constexpr int64_t kTokensPerBlock = 16;

}  // namespace tandem::engine
