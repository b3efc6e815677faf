#pragma once

#include <cstdint>
#include <span>

#include "engine/base/ids.h"
#include "engine/ops/matmul.h"
#include "engine/ops/rows.h"
#include "engine/tensor/kv_block.h"
#include "engine/tensor/kv_format.h"

namespace tandem::engine {

struct AttentionSpec {
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;  // divides n_heads; query head h uses kv head h / (n_heads / n_kv_heads)
  int64_t head_dim = 0;
  int64_t v_head_dim = 0;  // of a head's values and output; 0: head_dim
  float scale = 1;         // multiplies q . k
  int64_t window = 0;      // a query sees this many keys counting itself; 0 = all
  float soft_cap = 0;      // cap * tanh(s / cap) before the mask; 0 = off
  // A query sees only keys of its own chunk of this many positions, from a multiple of it; 0 = off.
  // REQUIRES: a multiple of kTokensPerBlock, and no window.
  int64_t chunk = 0;

  int64_t value_dim() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
};

// Keys of one kv head in one block: bf16 [ceil(head_dim/2)][16][2], f32 [head_dim][16] (lanes are
// positions). Values: [16][RowStride(value_dim)]. Each takes KvHeadBlockBytes of its own width. In
// kInt8 each begins with the f32 scales of its 16 tokens; int8 elements follow in the same order.
int64_t KvHeadBlockBytes(DType dtype, int64_t dim, KvFormat format = KvFormat::kCompute);

// Keys and values of one layer, in blocks. Block b of kv head h begins at
// base + b * stride + h * KvHeadBlockBytes.
struct KvLayerView {
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  int64_t key_stride_bytes = 0;
  int64_t value_stride_bytes = 0;
  DType dtype = DType::kF32;  // of compute
  KvFormat format = KvFormat::kCompute;
};

// A run of rows of one sequence (serving) or one packed segment (training). Position p is in
// blocks[p / 16]. Row r has position first_position + r and sees keys at positions up to its own.
struct AttentionSlice {
  int64_t first_row = 0;
  int64_t n_rows = 0;
  int64_t first_position = 0;
  std::span<const BlockId> blocks;
};

// Writes the rows' keys and values (already rounded to the compute dtype) into their blocks. kInt8
// rounds each token's head by itself, so a block's bits do not depend on how chunks split it.
// Unwritten slots of a block may hold anything.
void WriteKv(OpsContext& ops, const AttentionSpec& spec, const ConstMatrix& k, const ConstMatrix& v,
             std::span<const AttentionSlice> slices, const KvLayerView& kv);

// out[row, head, value_dim] = softmax(scale * q . K) . V over the row's visible keys. Keys come in
// tiles of 64 at absolute positions; the online softmax is f32. q has the compute dtype of
// the cache; out is in it, too (rounded once). `lse` [rows, n_heads] (log of the sum of
// exponentials) may be null. `sinks` [n_heads], or null: a further score in each row's sum, after
// the cap, that has no value; `lse` contains it.
void Attention(OpsContext& ops, const AttentionSpec& spec, const ConstMatrix& q,
               std::span<const AttentionSlice> slices, const KvLayerView& kv, const Matrix& out,
               float* lse, const float* sinks = nullptr);

}  // namespace tandem::engine
