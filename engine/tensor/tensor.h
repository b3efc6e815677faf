#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/tensor/dtype.h"

namespace tandem::engine {

// Product of the dims. Throws kDataLoss for a negative dim or an overflow.
int64_t ElementCount(std::span<const int64_t> shape);

// "[2, 3]", for messages.
std::string ShapeText(std::span<const int64_t> shape);

// Borrowed row-major memory with a shape; the last axis is contiguous.
struct ConstTensorView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  int64_t elements() const { return ElementCount(shape); }
  size_t bytes() const { return static_cast<size_t>(elements()) * DTypeBytes(dtype); }
};

// Converts a floating-point tensor to f32: exactly, but f64 is rounded. REQUIRES: out.size() ==
// elements. Throws kUnsupported for other types.
void ConvertToF32(const ConstTensorView& source, std::span<float> out);

}  // namespace tandem::engine
