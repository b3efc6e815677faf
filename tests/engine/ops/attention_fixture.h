#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "engine/ops/attention.h"
#include "tests/engine/ops/ops_test_support.h"

// Sequences, caches and an exact softmax for tests of attention.
namespace tandem::engine {

// Queries, keys and values of a sequence at all positions.
struct Sequence {
  Sequence(DType dtype, const AttentionSpec& spec, int64_t length, uint32_t seed)
      : n(length),
        q(dtype, n, spec.n_heads * spec.head_dim,
          RandomFloats(n * spec.n_heads * spec.head_dim, seed)),
        k(dtype, n, spec.n_kv_heads * spec.head_dim,
          RandomFloats(n * spec.n_kv_heads * spec.head_dim, seed + 1)),
        v(dtype, n, spec.n_kv_heads * spec.value_dim(),
          RandomFloats(n * spec.n_kv_heads * spec.value_dim(), seed + 2)) {}
  const float* sinks_or_null() const { return sinks.empty() ? nullptr : sinks.data(); }

  int64_t n;
  TestMatrix q, k, v;
  std::vector<float> sinks = {};  // by head; empty: none
};

// Heap blocks, exactly as many as requested, filled with 0xff (NaN in both dtypes). Unwritten and
// masked positions must not be read.
class TestCache {
 public:
  TestCache(DType dtype, const AttentionSpec& spec, int64_t n_blocks,
            KvFormat format = KvFormat::kCompute)
      : key_stride_(spec.n_kv_heads * KvHeadBlockBytes(dtype, spec.head_dim, format)),
        value_stride_(spec.n_kv_heads * KvHeadBlockBytes(dtype, spec.value_dim(), format)),
        keys_(static_cast<size_t>(n_blocks * key_stride_)),
        values_(static_cast<size_t>(n_blocks * value_stride_)),
        dtype_(dtype),
        format_(format) {
    std::memset(keys_.data(), 0xff, keys_.size());
    std::memset(values_.data(), 0xff, values_.size());
  }
  KvLayerView view() {
    return {keys_.data(), values_.data(), key_stride_, value_stride_, dtype_, format_};
  }

 private:
  int64_t key_stride_;
  int64_t value_stride_;
  AlignedBuffer keys_;
  AlignedBuffer values_;
  DType dtype_;
  KvFormat format_;
};

inline int64_t BlocksFor(int64_t tokens) {
  return (tokens + kTokensPerBlock - 1) / kTokensPerBlock;
}

// Block ids [first, first + count) in a scattered order.
inline std::vector<BlockId> ScatteredBlocks(int64_t first, int64_t count) {
  std::vector<BlockId> blocks;
  for (int64_t i = 0; i < count; ++i) {
    blocks.push_back({static_cast<uint32_t>(first + (i % 2 == 0 ? i / 2 : count - 1 - i / 2))});
  }
  return blocks;
}

struct Result {
  Result(DType dtype, const AttentionSpec& spec, int64_t rows)
      : out(dtype, rows, spec.n_heads * spec.value_dim()),
        lse(static_cast<size_t>(rows * spec.n_heads)) {}
  TestMatrix out;
  std::vector<float> lse;
  bool operator==(const Result& other) const {
    return out == other.out && SameBits(lse, other.lse);
  }
};

// Runs a sequence in chunks: each writes its keys and values, then attends.
inline void RunInChunks(OpsContext& ops, const AttentionSpec& spec, const Sequence& s,
                        std::span<const BlockId> blocks, const KvLayerView& kv,
                        const std::vector<int64_t>& chunks, const Result& result) {
  int64_t first = 0;
  for (const int64_t rows : chunks) {
    const AttentionSlice slice = {0, rows, first, blocks};
    WriteKv(ops, spec, s.k.Rows(first, rows), s.v.Rows(first, rows), {&slice, 1}, kv);
    Attention(ops, spec, s.q.Rows(first, rows), {&slice, 1}, kv, result.out.Rows(first, rows),
              const_cast<float*>(result.lse.data()) + first * spec.n_heads, s.sinks_or_null());
    first += rows;
  }
  ASSERT_EQ(first, s.n);
}

inline void ExpectExact(const AttentionSpec& spec, const Sequence& s, const Result& result) {
  const int64_t group = spec.n_heads / spec.n_kv_heads;
  for (int64_t row = 0; row < s.n; ++row) {
    for (int64_t head = 0; head < spec.n_heads; ++head) {
      const int64_t kv_head = head / group;
      int64_t first = spec.window > 0 ? std::max<int64_t>(0, row - spec.window + 1) : 0;
      if (spec.chunk > 0) first = row / spec.chunk * spec.chunk;
      std::vector<double> p;
      double max = -std::numeric_limits<double>::infinity();
      for (int64_t key = first; key <= row; ++key) {
        double dot = 0;
        for (int64_t d = 0; d < spec.head_dim; ++d) {
          dot += double{s.q.At(row, head * spec.head_dim + d)} *
                 s.k.At(key, kv_head * spec.head_dim + d);
        }
        dot *= spec.scale;
        if (spec.soft_cap > 0) dot = spec.soft_cap * std::tanh(dot / spec.soft_cap);
        p.push_back(dot);
        max = std::max(max, dot);
      }
      if (!s.sinks.empty()) max = std::max(max, double{s.sinks[static_cast<size_t>(head)]});
      double sum = s.sinks.empty() ? 0 : std::exp(s.sinks[static_cast<size_t>(head)] - max);
      for (double& x : p) {
        x = std::exp(x - max);
        sum += x;
      }
      ASSERT_NEAR(result.lse[static_cast<size_t>(row * spec.n_heads + head)], max + std::log(sum),
                  2e-4);
      for (int64_t d = 0; d < spec.value_dim(); ++d) {
        double out = 0;
        for (int64_t key = first; key <= row; ++key) {
          out += p[static_cast<size_t>(key - first)] * s.v.At(key, kv_head * spec.value_dim() + d);
        }
        out /= sum;
        const bool bf16 = result.out.matrix().dtype == DType::kBF16;
        ASSERT_NEAR(result.out.At(row, head * spec.value_dim() + d), out,
                    2e-5 + (bf16 ? std::abs(out) * 0x1p-8 : 0))
            << "row " << row << " head " << head << " d " << d << " head_dim " << spec.head_dim;
      }
    }
  }
}

inline AttentionSpec Spec(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return {.n_heads = heads,
          .n_kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

}  // namespace tandem::engine
