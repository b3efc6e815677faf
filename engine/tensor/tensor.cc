#include "engine/tensor/tensor.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "engine/base/check.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::engine {
namespace {

template <class T>
T LoadAt(const std::byte* data, size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

// Exact. E4M3 has no infinities; its all-ones codes are NaN. E8M0 is 2^(byte - 127), 255 is NaN.
float F8ToFloat(DType dtype, uint8_t byte) {
  if (dtype == DType::kF8E5M2) return F16ToFloat(static_cast<uint16_t>(byte << 8));
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  if (dtype == DType::kF8E8M0) return byte == 255 ? kNaN : std::ldexp(1.0f, byte - 127);
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  if (exponent == 15 && mantissa == 7) return kNaN;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (byte & 128) != 0 ? -magnitude : magnitude;
}

}  // namespace

int64_t ElementCount(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) {
    if (dim < 0) throw Error(ErrorCode::kDataLoss, "negative dimension " + std::to_string(dim));
    count = CheckedMul(count, dim, "tensor element count");
  }
  return count;
}

std::string ShapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (const int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

void ConvertToF32(const ConstTensorView& source, std::span<float> out) {
  TANDEM_CHECK(static_cast<int64_t>(out.size()) == source.elements());
  switch (source.dtype) {
    case DType::kF32:
      if (!out.empty()) std::memcpy(out.data(), source.data, out.size_bytes());
      return;
    case DType::kBF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = Bf16ToFloat(LoadAt<Bf16>(source.data, i));
      return;
    case DType::kF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = F16ToFloat(LoadAt<uint16_t>(source.data, i));
      return;
    case DType::kF64:
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<float>(LoadAt<double>(source.data, i));
      return;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF8E8M0:
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = F8ToFloat(source.dtype, std::to_integer<uint8_t>(source.data[i]));
      }
      return;
    default:
      throw Error(ErrorCode::kUnsupported, "tensor of type " +
                                               std::string(DTypeName(source.dtype)) +
                                               " cannot be decoded as floating point");
  }
}

}  // namespace tandem::engine
