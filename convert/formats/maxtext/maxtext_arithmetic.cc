#include "convert/formats/maxtext/maxtext_arithmetic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/base/check.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::convert {
namespace {

using engine::DType;

constexpr int64_t kAtOnce = 256;  // fits in the L1 cache

float FromOrdinal(DType dtype, int64_t ordinal) {
  const uint32_t sign = dtype == DType::kF32 ? 0x80000000u : 0x8000u;
  const int64_t largest = sign - 1;
  if (ordinal > largest || -1 - ordinal > largest) return std::nanf("");
  const uint32_t bits =
      ordinal < 0 ? sign | static_cast<uint32_t>(-1 - ordinal) : static_cast<uint32_t>(ordinal);
  if (dtype == DType::kF32) return std::bit_cast<float>(bits);
  const auto half = static_cast<uint16_t>(bits);
  return dtype == DType::kBF16 ? engine::Bf16ToFloat(half) : engine::F16ToFloat(half);
}

bool SameBits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

// GCC vectors of several numbers, for any instruction set. A loop over floats would contain
// branches when GCC vectorises it.
constexpr int kLanes = 8;
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Bits8 __attribute__((vector_size(4 * kLanes)));

inline Bits8 BitsOf(Floats values) { return std::bit_cast<Bits8>(values); }

// Returns the differing bits: zero where the candidate has the wanted product.
inline Bits8 Misses(Bits8 candidate, float factor, Floats product) {
  return BitsOf(std::bit_cast<Floats>(candidate) * factor) ^ BitsOf(product);
}

// Rounds to the nearest number whose low 16 bits are zero.
inline Bits8 Nearest16(Bits8 bits) { return (bits + 0x8000u) & 0xffff0000u; }

// Returns the float with the most trailing zero bits among those whose product is `product`, or the
// quotient if there is none. Candidates are the quotient, its neighbours and the nearest 16-bit
// number: more floats than the neighbours share one subnormal product. `bits` is the quotient.
inline Bits8 BestQuotient(Bits8 bits, float factor, Floats product) {
  // A higher lowest set bit means more trailing zeros.
  const auto rank = [&](Bits8 candidate) {
    return Misses(candidate, factor, product) == 0u ? candidate & (0u - candidate) : Bits8{};
  };
  const Bits8 rank_below = rank(bits - 1u);
  const Bits8 rank_above = rank(bits + 1u);
  Bits8 best_rank = rank(bits);
  Bits8 best = rank_below > best_rank ? bits - 1u : bits;
  best_rank = rank_below > best_rank ? rank_below : best_rank;
  best = rank_above > best_rank ? bits + 1u : best;
  // Keep the quotient if it is zero, not finite, or already a 16-bit number.
  const Bits8 size = bits & 0x7fffffffu;
  best = ((bits & 0xffffu) == 0u) | (size >= 0x7f800000u) | (size == 0u) ? bits : best;
  const Bits8 rounded = Nearest16(bits);
  return Misses(rounded, factor, product) == 0u ? rounded : best;
}

float Quotient(float product, float factor) {
  const Floats products{product};
  return std::bit_cast<Floats>(BestQuotient(BitsOf(products / factor), factor, products))[0];
}

// Applies BestQuotient to many numbers in place. In a 16-bit model nearly all results are 16-bit
// numbers, so whole blocks are tested for that first.
void Quotients(float factor, float* values, int64_t n) {
  constexpr int kVectors = 8;
  constexpr int64_t kStep = kVectors * kLanes;
  for (int64_t first = 0; first < n; first += kStep) {
    const auto bytes = static_cast<size_t>(std::min(kStep, n - first)) * sizeof(float);
    Floats products[kVectors];
    if (bytes < sizeof(products)) std::memset(products, 0, sizeof(products));
    std::memcpy(products, values + first, bytes);
    Bits8 bits[kVectors];
    Bits8 best[kVectors];
    Bits8 misses{};
    for (int i = 0; i < kVectors; ++i) {
      bits[i] = BitsOf(products[i] / factor);
      best[i] = Nearest16(bits[i]);
      misses |= Misses(best[i], factor, products[i]);
    }
    uint32_t any = 0;
    for (int lane = 0; lane < kLanes; ++lane) any |= misses[lane];
    for (int i = 0; any != 0 && i < kVectors; ++i) {
      best[i] = BestQuotient(bits[i], factor, products[i]);
    }
    std::memcpy(values + first, best, bytes);
  }
}

void Undo(const MaxTextArithmetic& arithmetic, DType leaf_dtype, float* values, int64_t n) {
  if (arithmetic.IsNone()) return;
  if (arithmetic.added == 0 && leaf_dtype == DType::kF32) {
    return Quotients(arithmetic.factor, values, n);
  }
  for (int64_t i = 0; i < n; ++i) values[i] = FromMaxText(arithmetic, leaf_dtype, values[i]);
}

void LoadSteps(const Corrections& corrections, int64_t first, int64_t n, int32_t* steps) {
  if (corrections.stored == DType::kI8) {
    const auto* from = reinterpret_cast<const int8_t*>(corrections.steps.data()) + first;
    for (int64_t i = 0; i < n; ++i) steps[i] = from[i];
    return;
  }
  std::memcpy(steps, corrections.steps.data() + first * int64_t{sizeof(int32_t)},
              static_cast<size_t>(n) * sizeof(int32_t));
}

// Corrects a tensor and a leaf in f32, vectorised.
void CorrectF32(const MaxTextArithmetic& arithmetic, const float* theirs, const int32_t* steps,
                float* values, int64_t n) {
  const float factor = arithmetic.added != 0 ? 1 : arithmetic.factor;
  const float added = arithmetic.added;
  const bool adds = added != 0;
  for (int64_t i = 0; i < n; ++i) {
    // These are OrdinalOf and FromOrdinal for f32, inlined.
    const auto bits = std::bit_cast<int32_t>(values[i]);
    const int32_t ordinal = bits ^ ((bits >> 31) & 0x7fffffff);
    const auto moved =
        static_cast<int32_t>(static_cast<uint32_t>(ordinal) + static_cast<uint32_t>(steps[i]));
    const bool is_beyond = ((ordinal ^ moved) & (steps[i] ^ moved)) < 0;
    const auto corrected = std::bit_cast<float>(moved ^ ((moved >> 31) & 0x7fffffff));
    const float made = adds ? corrected + added : corrected * factor;
    const bool is_it =
        !is_beyond && std::bit_cast<uint32_t>(made) == std::bit_cast<uint32_t>(theirs[i]);
    values[i] = is_it ? corrected : values[i];
  }
}

void Correct(const MaxTextArithmetic& arithmetic, DType leaf_dtype, DType dtype,
             const float* theirs, const int32_t* steps, float* values, int64_t n) {
  if (dtype == DType::kF32 && leaf_dtype == DType::kF32) {
    return CorrectF32(arithmetic, theirs, steps, values, n);
  }
  for (int64_t i = 0; i < n; ++i) {
    const float corrected = FromOrdinal(dtype, OrdinalOf(dtype, values[i]) + steps[i]);
    if (SameBits(Rounded(leaf_dtype, ToMaxText(arithmetic, corrected)), theirs[i])) {
      values[i] = corrected;
    }
  }
}

}  // namespace

float Rounded(DType dtype, float value) {
  switch (dtype) {
    case DType::kBF16:
      return engine::Bf16ToFloat(engine::FloatToBf16(value));
    case DType::kF16:
      return engine::F16ToFloat(engine::FloatToF16(value));
    default:
      return value;
  }
}

int64_t OrdinalOf(DType dtype, float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint32_t sign = 0x80000000u;
  if (dtype != DType::kF32) {
    bits = dtype == DType::kBF16 ? engine::FloatToBf16(value) : engine::FloatToF16(value);
    sign = 0x8000u;
  }
  return (bits & sign) != 0 ? -1 - static_cast<int64_t>(bits & (sign - 1))
                            : static_cast<int64_t>(bits);
}

float ToMaxText(const MaxTextArithmetic& arithmetic, float value) {
  return arithmetic.added != 0 ? value + arithmetic.added : value * arithmetic.factor;
}

float FromMaxText(const MaxTextArithmetic& arithmetic, DType leaf_dtype, float value) {
  if (arithmetic.added != 0) return value - arithmetic.added;
  if (arithmetic.factor == 1) return value;
  // A product that was rounded to 16 bits cannot be inverted exactly.
  return leaf_dtype == DType::kF32 ? Quotient(value, arithmetic.factor) : value / arithmetic.factor;
}

void ApplyScale(const MaxTextArithmetic& arithmetic, float* values, int64_t n) {
  if (arithmetic.IsNone()) return;
  for (int64_t i = 0; i < n; ++i) values[i] = ToMaxText(arithmetic, values[i]);
}

void InvertScale(const MaxTextArithmetic& arithmetic, DType leaf_dtype,
                 const Corrections& corrections, int64_t first, float* values, int64_t n) {
  if (corrections.steps.empty()) return Undo(arithmetic, leaf_dtype, values, n);
  float theirs[kAtOnce];
  int32_t steps[kAtOnce];
  for (int64_t done = 0; done < n; done += kAtOnce) {
    float* const part = values + done;
    const int64_t m = std::min(kAtOnce, n - done);
    std::memcpy(theirs, part, static_cast<size_t>(m) * sizeof(float));
    Undo(arithmetic, leaf_dtype, part, m);
    LoadSteps(corrections, first + done, m, steps);
    Correct(arithmetic, leaf_dtype, corrections.dtype, theirs, steps, part, m);
  }
}

}  // namespace tandem::convert
