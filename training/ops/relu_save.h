#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/ops/rows.h"

namespace tandem::training {

// What is kept of y = relu(x) for its gradient in place of x and y. Bits are little-endian: element
// i is bit i % 8 of byte i / 8.

// Bytes of one bit per element.
constexpr int64_t ReluMaskBytes(int64_t elements) { return (elements + 7) / 8; }

// mask = (x > 0). Enough for dx = dy * [x > 0]; the weight gradient of what reads y needs more.
void ReluMask(engine::OpsContext& ops, const float* x, int64_t elements, uint8_t* mask);
// dx += dy * mask: the bits of ActivateBackward, whatever x and dy are (zeros of both signs,
// infinities; what is not a number stays so, though it may be another NaN).
void ReluMaskBackward(engine::OpsContext& ops, const uint8_t* mask, const float* dy,
                      int64_t elements, float* dx);

// The values of y that a mask marks, in order. Memory grows to its largest use and stays.
struct PackedRelu {
  AlignedBuffer values;
  std::vector<int64_t> first;  // of each task's elements
  int64_t count = 0;
};

// Keeps all of y [rows, cols] (dense x, y in the compute dtype): marks what is not +0 or has x > 0
// (a tiny x may round to +0), and packs it.
void PackRelu(engine::OpsContext& ops, const float* x, const engine::ConstMatrix& y, uint8_t* mask,
              PackedRelu* packed);
// y with the bits that it had.
void UnpackRelu(engine::OpsContext& ops, const uint8_t* mask, const PackedRelu& packed,
                const engine::Matrix& y);
// dx += dy * [x > 0], as ReluMaskBackward. `dtype` is that of y.
void PackedReluBackward(engine::OpsContext& ops, const uint8_t* mask, const PackedRelu& packed,
                        engine::DType dtype, const float* dy, int64_t elements, float* dx);

}  // namespace tandem::training
