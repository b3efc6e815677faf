#include "engine/tensor/round.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "engine/base/check.h"
#include "engine/tensor/bfloat16.h"
#include "engine/tensor/tensor.h"

namespace tandem::engine {
namespace {

template <class T, class Round>
void Append(std::span<const float> values, const Round& round, std::vector<std::byte>* bytes) {
  bytes->resize(values.size() * sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    const T value = round(values[i]);
    std::memcpy(bytes->data() + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

bool FitsIn(std::span<const float> values, DType dtype) {
  // The largest float that rounds to a finite number of the type.
  const float limit = dtype == DType::kF16    ? 65519.99f
                      : dtype == DType::kBF16 ? 3.3961775e38f
                                              : INFINITY;
  return std::all_of(values.begin(), values.end(), [&](float value) {
    return std::isfinite(value) && std::fabs(value) <= limit;
  });
}

void RoundTo(DType dtype, std::span<const float> values, std::vector<std::byte>* bytes) {
  switch (dtype) {
    case DType::kF32:
      return Append<float>(
          values, [](float v) { return v; }, bytes);
    case DType::kBF16:
      return Append<Bf16>(values, FloatToBf16, bytes);
    case DType::kF16:
      return Append<uint16_t>(values, FloatToF16, bytes);
    case DType::kF64:
      return Append<double>(
          values, [](float v) { return double{v}; }, bytes);
    default:
      TANDEM_CHECK(false);
  }
}

}  // namespace tandem::engine
