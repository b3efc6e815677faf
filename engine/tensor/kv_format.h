#pragma once

#include <cstdint>

namespace tandem::engine {

// How a KV cache stores keys and values. kInt8 keeps the nearest integers in [-127, 127] and one
// f32 scale for each token of a kv head: absmax / 127. A head with NaN or infinity has scale NaN.
enum class KvFormat : uint8_t {
  kCompute,  // in the compute dtype
  kInt8,
};

}  // namespace tandem::engine
