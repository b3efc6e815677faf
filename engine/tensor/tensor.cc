#include "engine/tensor/tensor.h"

#include <cstring>
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
    default:
      throw Error(ErrorCode::kUnsupported, "tensor of type " +
                                               std::string(DTypeName(source.dtype)) +
                                               " cannot be decoded as floating point");
  }
}

}  // namespace tandem::engine
