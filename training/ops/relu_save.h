#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/ops/rows.h"

namespace tandem::training {

// Compact forms of y = relu(x) that the gradient needs instead of x and y. Masks are little-endian:
// element i is bit i % 8 of byte i / 8.

// Bytes of a mask with one bit per element.
constexpr int64_t ReluMaskBytes(int64_t elements) { return (elements + 7) / 8; }

// mask = (x > 0). Suffices for dx = dy * [x > 0]; the weight gradient of y's reader needs y.
void ReluMask(engine::OpsContext& ops, const float* x, int64_t elements, uint8_t* mask);
// dx += dy * mask. Bit for bit ActivateBackward for all x and dy, zeros and infinities included;
// NaN stays NaN but may have another payload.
void ReluMaskBackward(engine::OpsContext& ops, const uint8_t* mask, const float* dy,
                      int64_t elements, float* dx);

// The values of y that a mask marks, in order. The memory grows to its largest use.
struct PackedRelu {
  AlignedBuffer values;
  std::vector<int64_t> first;  // index of each task's first value
  int64_t count = 0;
};

// Packs y [rows, cols] without loss (dense x, y in the compute dtype). Marks elements that are not
// +0 or have x > 0 (a tiny x may round to +0), and stores them.
void PackRelu(engine::OpsContext& ops, const float* x, const engine::ConstMatrix& y, uint8_t* mask,
              PackedRelu* packed);
// Restores y, bit for bit.
void UnpackRelu(engine::OpsContext& ops, const uint8_t* mask, const PackedRelu& packed,
                const engine::Matrix& y);
// dx += dy * [x > 0], like ReluMaskBackward. `dtype` is y's.
void PackedReluBackward(engine::OpsContext& ops, const uint8_t* mask, const PackedRelu& packed,
                        engine::DType dtype, const float* dy, int64_t elements, float* dx);

}  // namespace tandem::training
