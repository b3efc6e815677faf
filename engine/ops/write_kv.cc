#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/check.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/attention.h"
#include "engine/ops/attention_checks.h"
#include "engine/ops/parallel.h"

namespace tandem::engine {
namespace {

static_assert(kTokensPerBlock == kLanes);

// Interleaves the rows of 16 keys: [head_dim / pair][16][pair], a pair being one f32 or two bf16.
// Slots [first, first + count) of the block come from consecutive rows.
template <class T>
void WriteBlock(const AttentionSpec& spec, const T* k, int64_t ldk, const T* v, int64_t ldv,
                int64_t first_slot, int64_t count, T* keys, T* values) {
  constexpr int64_t kPair = sizeof(float) / sizeof(T);
  const int64_t whole = spec.head_dim / kPair * kPair;
  for (int64_t d = 0; d < whole; d += kPair) {
    T* to = keys + d * kTokensPerBlock + first_slot * kPair;
    for (int64_t slot = 0; slot < count; ++slot) {
      std::memcpy(to + slot * kPair, k + slot * ldk + d, sizeof(float));
    }
  }
  if (whole < spec.head_dim) {
    T* to = keys + whole * kTokensPerBlock + first_slot * kPair;
    for (int64_t slot = 0; slot < count; ++slot) {
      to[slot * kPair] = k[slot * ldk + whole];
      to[slot * kPair + 1] = T{0};
    }
  }
  const int64_t value_dim = spec.value_dim();
  const int64_t stride = RoundUp(value_dim, kPair);
  for (int64_t slot = 0; slot < count; ++slot) {
    T* to = values + (first_slot + slot) * stride;
    std::memcpy(to, v + slot * ldv, static_cast<size_t>(value_dim) * sizeof(T));
    std::fill(to + value_dim, to + stride, T{0});
  }
}

template <class T>
float ToFloat(T x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return Bf16ToFloat(x);
  } else {
    return x;
  }
}

// The nearest integer, even at ties. REQUIRES: |x| <= 2^21.
int8_t Nearest(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: the sum has no fraction
  return static_cast<int8_t>(x + kShift - kShift);
}

// The scale of one token's head, and the factor of its elements. Both are 0 for a head of zeros,
// or of numbers so small that the scale would be subnormal.
struct Int8Scale {
  float scale;
  float inverse;
};

template <class T>
Int8Scale ScaleOf(const T* x, int64_t dim) {
  float absmax = 0;
  bool is_finite = true;
  for (int64_t d = 0; d < dim; ++d) {
    const float value = std::fabs(ToFloat(x[d]));
    is_finite = is_finite && value <= std::numeric_limits<float>::max();
    absmax = std::max(absmax, value);
  }
  if (!is_finite) return {std::numeric_limits<float>::quiet_NaN(), 0};
  if (absmax < kLeastGroupMax) return {0, 0};
  return {absmax / 127, 127 / absmax};
}

// WriteBlock for KvFormat::kInt8.
template <class T>
void WriteInt8Block(const AttentionSpec& spec, const T* k, int64_t ldk, const T* v, int64_t ldv,
                    int64_t first_slot, int64_t count, std::byte* keys, std::byte* values) {
  constexpr int64_t kPair = sizeof(float) / sizeof(T);
  constexpr int64_t kScaleBytes = kTokensPerBlock * static_cast<int64_t>(sizeof(float));
  const int64_t value_dim = spec.value_dim();
  const int64_t key_stride = RoundUp(spec.head_dim, kPair);
  const int64_t value_stride = RoundUp(value_dim, kPair);
  auto* const key_integers = reinterpret_cast<int8_t*>(keys + kScaleBytes);
  auto* const value_integers = reinterpret_cast<int8_t*>(values + kScaleBytes);
  for (int64_t slot = first_slot; slot < first_slot + count; ++slot, k += ldk, v += ldv) {
    const Int8Scale of_key = ScaleOf(k, spec.head_dim);
    reinterpret_cast<float*>(keys)[slot] = of_key.scale;
    for (int64_t d = 0; d < key_stride; ++d) {
      const float x = d < spec.head_dim && of_key.inverse > 0 ? ToFloat(k[d]) * of_key.inverse : 0;
      key_integers[d / kPair * kPair * kTokensPerBlock + slot * kPair + d % kPair] = Nearest(x);
    }
    const Int8Scale of_value = ScaleOf(v, value_dim);
    reinterpret_cast<float*>(values)[slot] = of_value.scale;
    int8_t* const to = value_integers + slot * value_stride;
    for (int64_t d = 0; d < value_stride; ++d) {
      to[d] = Nearest(d < value_dim && of_value.inverse > 0 ? ToFloat(v[d]) * of_value.inverse : 0);
    }
  }
}

template <class T>
void WriteKvTyped(OpsContext& ops, const AttentionSpec& spec, const ConstMatrix& k,
                  const ConstMatrix& v, std::span<const AttentionSlice> slices,
                  const KvLayerView& kv) {
  const int64_t value_dim = spec.value_dim();
  const int64_t key_bytes = KvHeadBlockBytes(kv.dtype, spec.head_dim, kv.format);
  const int64_t value_bytes = KvHeadBlockBytes(kv.dtype, value_dim, kv.format);
  for (const AttentionSlice& slice : slices) {
    CheckAttention(slice);
    const int64_t first_block = slice.first_position / kTokensPerBlock;
    const int64_t end = slice.first_position + slice.n_rows;
    const int64_t n_blocks = (end + kTokensPerBlock - 1) / kTokensPerBlock - first_block;
    const auto write = [&](int64_t first, int64_t count, int) {
      for (int64_t b = first_block + first; b < first_block + first + count; ++b) {
        const int64_t from = std::max(slice.first_position, b * kTokensPerBlock);
        const int64_t to = std::min(end, (b + 1) * kTokensPerBlock);
        const int64_t row = slice.first_row + from - slice.first_position;
        const int64_t block = slice.blocks[static_cast<size_t>(b)].value;
        for (int64_t h = 0; h < spec.n_kv_heads; ++h) {
          const T* keys_in = static_cast<const T*>(k.data) + row * k.stride + h * spec.head_dim;
          const T* values_in = static_cast<const T*>(v.data) + row * v.stride + h * value_dim;
          std::byte* keys = kv.keys + block * kv.key_stride_bytes + h * key_bytes;
          std::byte* values = kv.values + block * kv.value_stride_bytes + h * value_bytes;
          if (kv.format == KvFormat::kInt8) {
            WriteInt8Block<T>(spec, keys_in, k.stride, values_in, v.stride, from % kTokensPerBlock,
                              to - from, keys, values);
          } else {
            WriteBlock<T>(spec, keys_in, k.stride, values_in, v.stride, from % kTokensPerBlock,
                          to - from, reinterpret_cast<T*>(keys), reinterpret_cast<T*>(values));
          }
        }
      }
    };
    const int64_t block_elements = kTokensPerBlock * spec.n_kv_heads * spec.head_dim;
    ParallelRows(ops, n_blocks, block_elements, write);
  }
}

}  // namespace

int64_t KvHeadBlockBytes(DType dtype, int64_t dim, KvFormat format) {
  const int64_t elements = kTokensPerBlock * RowStride(dtype, dim);
  if (format == KvFormat::kCompute) return elements * static_cast<int64_t>(DTypeBytes(dtype));
  return kTokensPerBlock * static_cast<int64_t>(sizeof(float)) + elements;
}

void WriteKv(OpsContext& ops, const AttentionSpec& spec, const ConstMatrix& k, const ConstMatrix& v,
             std::span<const AttentionSlice> slices, const KvLayerView& kv) {
  CheckAttention(spec);
  TANDEM_CHECK(k.dtype == kv.dtype && v.dtype == kv.dtype);
  WithComputeType(kv.dtype, [&]<class T>() { WriteKvTyped<T>(ops, spec, k, v, slices, kv); });
}

}  // namespace tandem::engine
