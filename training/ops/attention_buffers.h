#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/base/check.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/attention.h"

// The scratch of attention's backward pass, for attention_backward.cc only.
namespace tandem::training {

// T is the type of products: float, or bf16 where an instruction multiplies pairs of it.

// Queries per product.
inline constexpr int64_t kQueryBlock = 128;
// Queries that meet a tile of keys one block after the other. Their rows, and the tile's keys,
// values and gradients, stay in the second-level cache.
inline constexpr int64_t kQueryStrip = 4 * kQueryBlock;
// Keys per product dS K: panels of K are packed in chunks of this many keys.
inline constexpr int64_t kKeyChunkRows = 128;
// Keys whose scores exist at a time, and their stride: rows a power of two apart would share a few
// sets of the first-level cache.
inline constexpr int64_t kKeysAtOnce = 2 * kKeyChunkRows;
inline constexpr int64_t kScoreStride = kKeysAtOnce + engine::kLanes;

// Stride of dK^T and dV^T, for the same reason.
inline int64_t GradientStride(int64_t keys) { return keys + engine::kLanes; }

// Rows are padded to pairs in bf16.
template <class T>
constexpr int64_t kRowPair = sizeof(T) == 2 ? 2 : 1;

// Carves typed arrays out of a worker's scratch. With a null base it only counts bytes.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* Take(int64_t elements) {
    T* at = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += RoundUp<size_t>(static_cast<size_t>(elements) * sizeof(T), 64);
    return at;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

template <class T>
struct BackwardBuffers {
  // These belong to a segment.
  T* key_panels;         // [keys/16][dim/pair][16][pair]: lanes = keys
  T* value_panels;       // the same for V, with its own dim, as dv and dout
  T* key_columns;        // per chunk [dim/16][chunk/pair][16][pair]: lanes = dims
  float* dk_transposed;  // [dim, GradientStride(keys)]
  float* dv_transposed;
  // These belong to a strip of queries, one block after the other.
  T* q_rows;  // [strip, padded dim]
  T* dout_rows;
  T* q_transposed;  // per block [dim, padded rows]
  T* dout_transposed;
  float* dq;     // [strip, dim]
  float* delta;  // [strip]
  // These belong to a block of queries and a tile of keys.
  float* scores;  // [block, kScoreStride]
  float* dp;
  T* p_panels;  // [block, kKeysAtOnce]
  T* ds_panels;
  T* ds_rows;
  int64_t* first_key;
  int64_t* last_key;
  float* columns;  // [kKeyChunkRows, dim or value dim]
  T* rows;         // of keys or values: [kKeyChunkRows, padded dim or value dim]

  // `keys` is a multiple of 16.
  BackwardBuffers(Carver& carver, int64_t keys, const engine::AttentionSpec& spec) {
    const int64_t dim = spec.head_dim;
    const int64_t value_dim = spec.value_dim();
    const int64_t padded_dim = RoundUp(dim, kRowPair<T>);
    const int64_t padded_value_dim = RoundUp(value_dim, kRowPair<T>);
    const int64_t strip = std::min(kQueryStrip, RoundUp(keys, kQueryBlock));
    key_panels = carver.Take<T>(keys * padded_dim);
    value_panels = carver.Take<T>(keys * padded_value_dim);
    key_columns = carver.Take<T>(RoundUp(keys, kKeyChunkRows) * RoundUp(dim, engine::kLanes));
    dk_transposed = carver.Take<float>(dim * GradientStride(keys));
    dv_transposed = carver.Take<float>(value_dim * GradientStride(keys));
    q_rows = carver.Take<T>(strip * padded_dim);
    dout_rows = carver.Take<T>(strip * padded_value_dim);
    q_transposed = carver.Take<T>(strip * dim);
    dout_transposed = carver.Take<T>(strip * value_dim);
    dq = carver.Take<float>(strip * dim);
    delta = carver.Take<float>(strip);
    scores = carver.Take<float>(kQueryBlock * kScoreStride);
    dp = carver.Take<float>(kQueryBlock * kScoreStride);
    p_panels = carver.Take<T>(kQueryBlock * kKeysAtOnce);
    ds_panels = carver.Take<T>(kQueryBlock * kKeysAtOnce);
    ds_rows = carver.Take<T>(kQueryBlock * kKeysAtOnce);
    first_key = carver.Take<int64_t>(kQueryBlock);
    last_key = carver.Take<int64_t>(kQueryBlock);
    columns = carver.Take<float>(kKeyChunkRows * std::max(dim, value_dim));
    rows = carver.Take<T>(kKeyChunkRows * std::max(padded_dim, padded_value_dim));
  }
};

}  // namespace tandem::training
