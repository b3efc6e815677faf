#pragma once

#include <bit>
#include <cstdint>

#include "engine/tensor/bfloat16.h"

namespace tandem::engine {

// Joins a master weight from its nearest bf16 and the signed remainder (training/optim stores
// both).
inline float JoinSplitMaster(Bf16 high, int16_t low) {
  return std::bit_cast<float>((static_cast<uint32_t>(high) << 16) +
                              static_cast<uint32_t>(static_cast<int32_t>(low)));
}

}  // namespace tandem::engine
