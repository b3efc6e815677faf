#include "convert/formats/gguf/gguf_quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/base/check.h"
#include "engine/tensor/bfloat16.h"
#include "engine/tensor/round.h"

namespace tandem::convert {
namespace {

using engine::DType;
using engine::Encoding;

constexpr size_t kBlock = 32;
constexpr size_t kScaleBytes = 2;
constexpr float kLargestHalf = 65504;

DType DTypeOf(GgufNumbers numbers) {
  if (numbers == GgufNumbers::kF16) return DType::kF16;
  return numbers == GgufNumbers::kBF16 ? DType::kBF16 : DType::kF32;
}

// Returns the number of largest magnitude, the first of several.
float Extreme(std::span<const float> block) {
  float extreme = 0;
  for (const float value : block) {
    if (std::abs(value) > std::abs(extreme)) extreme = value;
  }
  return extreme;
}

void PutScale(float scale, std::byte* out) {
  const uint16_t half = engine::FloatToF16(scale);
  std::memcpy(out, &half, kScaleBytes);
}

// Writes an f16 scale, then a signed byte per number.
void EncodeQ8(std::span<const float> block, std::byte* out) {
  const float scale = std::abs(Extreme(block)) / 127;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  PutScale(scale, out);
  for (size_t i = 0; i < kBlock; ++i) {
    const float rounded = std::round(block[i] * inverse);
    out[kScaleBytes + i] = static_cast<std::byte>(static_cast<int8_t>(rounded));
  }
}

// Writes an f16 scale whose sign makes the extreme -8, then 4-bit numbers; the block's second half
// is in the high nibbles. Product and sum are rounded separately (the build fuses nothing), as in
// the Python reference. The C reference depends on its compiler.
void EncodeQ4(std::span<const float> block, std::byte* out) {
  const float scale = Extreme(block) / -8;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  PutScale(scale, out);
  const auto nibble = [&](size_t i) {
    // The extreme gives 0, so only the top is clamped.
    return std::min(15, static_cast<int>(block[i] * inverse + 8.5f));
  };
  for (size_t i = 0; i < kBlock / 2; ++i) {
    out[kScaleBytes + i] = static_cast<std::byte>(nibble(i) | nibble(i + kBlock / 2) << 4);
  }
}

bool HasScales(GgufNumbers numbers, std::span<const float> values) {
  const float most = kLargestHalf * (numbers == GgufNumbers::kQ8_0 ? 127 : 8);
  return std::all_of(values.begin(), values.end(),
                     [&](float value) { return std::abs(value) <= most; });
}

void Encode(GgufNumbers numbers, std::span<const float> values, std::span<std::byte> out) {
  if (!IsBlocked(numbers)) {
    std::vector<std::byte> rounded;
    engine::RoundTo(DTypeOf(numbers), values, &rounded);
    std::copy(rounded.begin(), rounded.end(), out.begin());
    return;
  }
  const auto block_bytes = static_cast<size_t>(GgufBytes(numbers, kBlock));
  for (size_t i = 0; i < values.size() / kBlock; ++i) {
    const auto block = values.subspan(i * kBlock, kBlock);
    std::byte* to = out.data() + i * block_bytes;
    numbers == GgufNumbers::kQ8_0 ? EncodeQ8(block, to) : EncodeQ4(block, to);
  }
}

GgufError ErrorOf(GgufNumbers numbers, std::span<const float> values,
                  std::span<const std::byte> bytes) {
  std::vector<float> decoded(values.size());
  const auto count = static_cast<int64_t>(values.size());
  const Encoding encoding = numbers == GgufNumbers::kQ8_0   ? Encoding::kQ8_0
                            : numbers == GgufNumbers::kQ4_0 ? Encoding::kQ4_0
                                                            : Encoding::kPlain;
  engine::ReadRows({.view = {bytes.data(), DTypeOf(numbers), {1, count}}, .encoding = encoding}, 0,
                   1, decoded.data());
  GgufError error;
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = values[i], difference = value - decoded[i];
    error.max_abs = std::max(error.max_abs, std::abs(difference));
    error.squares += difference * difference;
    error.source_squares += value * value;
  }
  return error;
}

}  // namespace

std::string_view GgufNumbersName(GgufNumbers numbers) {
  switch (numbers) {
    case GgufNumbers::kF32:
      return "F32";
    case GgufNumbers::kF16:
      return "F16";
    case GgufNumbers::kBF16:
      return "BF16";
    case GgufNumbers::kQ8_0:
      return "Q8_0";
    case GgufNumbers::kQ4_0:
      return "Q4_0";
  }
  TANDEM_CHECK(false);
}

bool IsBlocked(GgufNumbers numbers) {
  return numbers == GgufNumbers::kQ8_0 || numbers == GgufNumbers::kQ4_0;
}

void GgufError::Add(const GgufError& other) {
  max_abs = std::max(max_abs, other.max_abs);
  squares += other.squares;
  source_squares += other.source_squares;
}

double GgufError::RelativeRms() const {
  return source_squares == 0 ? 0 : std::sqrt(squares / source_squares);
}

bool EncodeGguf(GgufNumbers numbers, std::span<const float> values, std::span<std::byte> out,
                GgufError* error) {
  const bool has =
      IsBlocked(numbers) ? HasScales(numbers, values) : engine::FitsIn(values, DTypeOf(numbers));
  if (!has) return false;
  Encode(numbers, values, out);
  if (error != nullptr) *error = ErrorOf(numbers, values, out);
  return true;
}

}  // namespace tandem::convert
