// Attention over packed segments.
//
// The forward is serving's: each segment's keys and values go into KV blocks of their own, at
// positions counted from the segment's start, and engine::Attention computes the rest.
//
// A sink enters the backward pass through lse alone. rowsum(dO O) stays the sum of P dP, since a
// sink has no value.
//
// The backward is algorithm 2 of FlashAttention-2 (Dao, 2023) without the online part, because the
// forward's lse is known. It consists of small matrix products per (segment, KV head), one query
// block after the other, all through the table's matmul kernel:
//   S  = Q K^T              P = exp(scale S - lse)
//   dP = dO V^T             dS = P (dP - rowsum(dO O)) scale
//   dV^T += dO^T P          dK^T += Q^T dS          dQ = dS K
// dV and dK are transposed, so that the gradient kernel can write P and dS directly as panels. One
// task owns a (segment, KV head): tasks share nothing and every order is fixed.

#include "training/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/base/check.h"
#include "engine/kernels/training_kernels.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::training {
namespace {

using engine::AttentionSpec;
using engine::Bf16;
using engine::ConstMatrix;
using engine::DType;
using engine::kLanes;
using engine::MatMulArgs;
using engine::Matrix;
using engine::OpsContext;

constexpr int64_t kQueryBlock = 128;
// Keys per product dS K: panels of K are packed in chunks of this many keys.
constexpr int64_t kKeyTile = 128;

int64_t BlocksOf(const Segment& segment) {
  return (segment.n_rows + engine::kTokensPerBlock - 1) / engine::kTokensPerBlock;
}

template <class T>
constexpr int64_t kPair = sizeof(T) == 2 ? 2 : 1;

template <class T>
T FromFloat(float value) {
  if constexpr (sizeof(T) == 2) {
    return engine::FloatToBf16(value);
  } else {
    return value;
  }
}
template <class T>
float AsFloat(T value) {
  if constexpr (sizeof(T) == 2) {
    return engine::Bf16ToFloat(value);
  } else {
    return value;
  }
}

void RunGradient(const engine::TrainingKernelTable& kernels,
                 const engine::AttentionGradientArgs<float>& args) {
  kernels.attention_gradient_f32(args);
}
void RunGradient(const engine::TrainingKernelTable& kernels,
                 const engine::AttentionGradientArgs<Bf16>& args) {
  kernels.attention_gradient_bf16(args);
}
// Packs rows [n, k] of a head as panels with lanes = rows; pads n and k with zeros.
template <class T>
void PackRows(const T* x, int64_t ldx, int64_t n, int64_t k, int64_t padded_k, T* panels) {
  const int64_t padded_n = RoundUp(n, kLanes);
  std::memset(panels, 0, static_cast<size_t>(padded_n * padded_k) * sizeof(T));
  for (int64_t row = 0; row < n; ++row) {
    T* panel = panels + row / kLanes * kLanes * padded_k + row % kLanes * kPair<T>;
    for (int64_t i = 0; i < k; ++i) {
      panel[i / kPair<T> * kLanes * kPair<T> + i % kPair<T>] = x[row * ldx + i];
    }
  }
}

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
  T* key_panels;         // [keys/16][dim/pair][16][pair]: lanes = keys
  T* value_panels;       // the same for V, with its own dim, as dv and dout
  T* key_columns;        // per chunk [dim/16][chunk/pair][16][pair]: lanes = dims
  float* dk_transposed;  // [dim, keys]
  float* dv_transposed;
  T* q_rows;  // [block, padded dim]
  T* dout_rows;
  T* q_transposed;  // [dim, block]
  T* dout_transposed;
  float* scores;  // [block, keys]
  float* dp;
  T* p_panels;
  T* ds_panels;
  T* ds_rows;
  float* dq_block;  // [block, dim]
  float* delta;     // [block]
  int64_t* first_key;
  int64_t* last_key;

  BackwardBuffers(Carver& carver, int64_t keys, const AttentionSpec& spec) {
    const int64_t dim = spec.head_dim;
    const int64_t value_dim = spec.value_dim();
    const int64_t padded_dim = RoundUp(dim, kPair<T>);
    const int64_t padded_value_dim = RoundUp(value_dim, kPair<T>);
    const int64_t dim_lanes = RoundUp(dim, kLanes);
    const int64_t chunked_keys = RoundUp(keys, kKeyTile);
    key_panels = carver.Take<T>(keys * padded_dim);
    value_panels = carver.Take<T>(keys * padded_value_dim);
    key_columns = carver.Take<T>(chunked_keys * dim_lanes);
    dk_transposed = carver.Take<float>(dim * keys);
    dv_transposed = carver.Take<float>(value_dim * keys);
    q_rows = carver.Take<T>(kQueryBlock * padded_dim);
    dout_rows = carver.Take<T>(kQueryBlock * padded_value_dim);
    q_transposed = carver.Take<T>(dim * kQueryBlock);
    dout_transposed = carver.Take<T>(value_dim * kQueryBlock);
    scores = carver.Take<float>(kQueryBlock * keys);
    dp = carver.Take<float>(kQueryBlock * keys);
    p_panels = carver.Take<T>(kQueryBlock * keys);
    ds_panels = carver.Take<T>(kQueryBlock * keys);
    ds_rows = carver.Take<T>(kQueryBlock * keys);
    dq_block = carver.Take<float>(kQueryBlock * dim);
    delta = carver.Take<float>(kQueryBlock);
    first_key = carver.Take<int64_t>(kQueryBlock);
    last_key = carver.Take<int64_t>(kQueryBlock);
  }
};

template <class T>
size_t BackwardBytes(int64_t segment_rows, const AttentionSpec& spec) {
  Carver counter(nullptr);
  BackwardBuffers<T>(counter, RoundUp(segment_rows, kLanes), spec);
  return counter.used();
}

template <class T>
struct BackwardTask {
  OpsContext& ops;
  const AttentionSpec& spec;
  const ConstMatrix& q;
  const ConstMatrix& k;
  const ConstMatrix& v;
  const ConstMatrix& out;
  const float* lse;
  const float* dout;
  float* dq;
  float* dk;
  float* dv;

  const T* Row(const ConstMatrix& x, int64_t row, int64_t column) const {
    return static_cast<const T*>(x.data) + row * x.stride + column;
  }

  void Run(const Segment& segment, int64_t kv_head, int worker) const {
    const int64_t dim = spec.head_dim;
    const int64_t value_dim = spec.value_dim();
    const int64_t padded_dim = RoundUp(dim, kPair<T>);
    const int64_t keys = RoundUp(segment.n_rows, kLanes);
    Carver carver(ops.WorkerScratch(worker, BackwardBytes<T>(segment.n_rows, spec)));
    const BackwardBuffers<T> b(carver, keys, spec);

    const T* key_rows = Row(k, segment.first_row, kv_head * dim);
    PackRows(key_rows, k.stride, segment.n_rows, dim, padded_dim, b.key_panels);
    PackRows(Row(v, segment.first_row, kv_head * value_dim), v.stride, segment.n_rows, value_dim,
             RoundUp(value_dim, kPair<T>), b.value_panels);
    const int64_t dim_lanes = RoundUp(dim, kLanes);
    for (int64_t first = 0; first < segment.n_rows; first += kKeyTile) {
      ops.kernels().typed<T>().pack_rows({.x = key_rows + first * k.stride,
                                          .ldx = k.stride,
                                          .rows = std::min(kKeyTile, segment.n_rows - first),
                                          .cols = dim,
                                          .out = b.key_columns + first * dim_lanes});
    }
    std::memset(b.dk_transposed, 0, static_cast<size_t>(dim * keys) * sizeof(float));
    std::memset(b.dv_transposed, 0, static_cast<size_t>(value_dim * keys) * sizeof(float));

    const int64_t group = spec.n_heads / spec.n_kv_heads;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int64_t first = 0; first < segment.n_rows; first += kQueryBlock) {
        RunQueryBlock(segment, head, first, keys, b);
      }
    }
    AddTransposed(b.dk_transposed, keys, segment, kv_head, dim, dk);
    AddTransposed(b.dv_transposed, keys, segment, kv_head, value_dim, dv);
  }

  void AddTransposed(const float* x, int64_t keys, const Segment& segment, int64_t kv_head,
                     int64_t dim, float* into) const {
    const int64_t ld = spec.n_kv_heads * dim;
    for (int64_t row = 0; row < segment.n_rows; ++row) {
      float* to = into + (segment.first_row + row) * ld + kv_head * dim;
      for (int64_t i = 0; i < dim; ++i) to[i] += x[i * keys + row];
    }
  }

  // The first key that the row at this position sees.
  int64_t FirstKey(int64_t position) const {
    if (spec.chunk > 0) return position / spec.chunk * spec.chunk;
    return spec.window > 0 ? std::max<int64_t>(0, position - spec.window + 1) : 0;
  }

  void RunQueryBlock(const Segment& segment, int64_t head, int64_t first, int64_t keys,
                     const BackwardBuffers<T>& b) const {
    const int64_t dim = spec.head_dim;
    const int64_t value_dim = spec.value_dim();
    const int64_t padded_dim = RoundUp(dim, kPair<T>);
    const int64_t padded_value_dim = RoundUp(value_dim, kPair<T>);
    const int64_t rows = std::min(kQueryBlock, segment.n_rows - first);
    const int64_t padded_rows = RoundUp<int64_t>(rows, 2);
    // Causal attention needs no later keys, and no keys before the first row's window. Products
    // start at `start`, in whole chunks: the skipped keys would add zeros.
    const int64_t start = FirstKey(first) / kKeyTile * kKeyTile;
    const int64_t n_keys = RoundUp(first + rows, kLanes) - start;
    const int64_t ld_out = spec.n_heads * value_dim;
    const auto& kernels = ops.kernels().typed<T>();
    const auto& gradients = engine::TrainingKernels(ops.kernels());

    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = segment.first_row + first + r;
      const T* q_from = Row(q, row, head * dim);
      const T* out_from = Row(out, row, head * value_dim);
      const float* dout_from = dout + row * ld_out + head * value_dim;
      float out_row[512];
      TANDEM_DCHECK(value_dim <= 512);
      for (int64_t i = 0; i < padded_dim; ++i) {
        b.q_rows[r * padded_dim + i] = i < dim ? q_from[i] : T{};
      }
      for (int64_t i = 0; i < padded_value_dim; ++i) {
        b.dout_rows[r * padded_value_dim + i] = i < value_dim ? FromFloat<T>(dout_from[i]) : T{};
      }
      for (int64_t i = 0; i < value_dim; ++i) out_row[i] = AsFloat(out_from[i]);
      b.delta[r] = gradients.dot(dout_from, out_row, value_dim);
      b.last_key[r] = first + r - start;
      b.first_key[r] = FirstKey(first + r) - start;
    }
    kernels.transpose_rows({.x = b.q_rows,
                            .ldx = padded_dim,
                            .rows = rows,
                            .cols = dim,
                            .out = b.q_transposed,
                            .ldout = padded_rows});
    kernels.transpose_rows({.x = b.dout_rows,
                            .ldx = padded_value_dim,
                            .rows = rows,
                            .cols = value_dim,
                            .out = b.dout_transposed,
                            .ldout = padded_rows});

    kernels.matmul(Product(b.q_rows, padded_dim, rows, b.key_panels + start * padded_dim, n_keys,
                           padded_dim, b.scores, keys, false));
    kernels.matmul(Product(b.dout_rows, padded_value_dim, rows,
                           b.value_panels + start * padded_value_dim, n_keys, padded_value_dim,
                           b.dp, keys, false));
    RunGradient(gradients, {.scores = b.scores,
                            .dp = b.dp,
                            .ld = keys,
                            .rows = rows,
                            .padded_rows = padded_rows,
                            .n_keys = n_keys,
                            .first_key = b.first_key,
                            .last_key = b.last_key,
                            .lse = lse + (segment.first_row + first) * spec.n_heads + head,
                            .lse_stride = spec.n_heads,
                            .delta = b.delta,
                            .scale = spec.scale,
                            .soft_cap = spec.soft_cap,
                            .p_panels = b.p_panels,
                            .ds_panels = b.ds_panels,
                            .ds_rows = b.ds_rows});
    kernels.matmul(Product(b.dout_transposed, padded_rows, value_dim, b.p_panels, n_keys,
                           padded_rows, b.dv_transposed + start, keys, true));
    kernels.matmul(Product(b.q_transposed, padded_rows, dim, b.ds_panels, n_keys, padded_rows,
                           b.dk_transposed + start, keys, true));
    // dQ: chunks of keys, in order.
    const int64_t dim_lanes = RoundUp(dim, kLanes);
    for (int64_t key = 0; key < n_keys; key += kKeyTile) {
      // The chunk's panels end with its packed rows; dS is zero beyond the real keys.
      const int64_t packed = RoundUp(std::min(kKeyTile, segment.n_rows - start - key), kPair<T>);
      const T* columns = b.key_columns + (start + key) * dim_lanes;
      const int64_t chunk = std::min(packed, n_keys - key);
      if (chunk == packed) {
        MatMulArgs<T> args = Product(b.ds_rows + key, n_keys, rows, columns, dim_lanes, packed,
                                     b.dq_block, dim, key > 0);
        args.n_columns = dim;
        kernels.matmul(args);
        continue;
      }
      // This block sees only a prefix of the last chunk's packed keys: panel by panel.
      for (int64_t column = 0; column < dim_lanes; column += kLanes) {
        MatMulArgs<T> args = Product(b.ds_rows + key, n_keys, rows, columns + column * packed,
                                     kLanes, chunk, b.dq_block + column, dim, key > 0);
        args.n_columns = std::min(kLanes, dim - column);
        kernels.matmul(args);
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* to = dq + ((segment.first_row + first + r) * spec.n_heads + head) * dim;
      for (int64_t i = 0; i < dim; ++i) to[i] += b.dq_block[r * dim + i];
    }
  }

  static MatMulArgs<T> Product(const T* x, int64_t ldx, int64_t m, const T* panels,
                               int64_t n_columns, int64_t k, float* y, int64_t ldy,
                               bool accumulate) {
    return {.x = x,
            .ldx = ldx,
            .m = m,
            .panels = panels,
            .n_panels = RoundUp(n_columns, kLanes) / kLanes,
            .n_columns = n_columns,
            .k = k,
            .bias = nullptr,
            .y = y,
            .ldy = ldy,
            .accumulate = accumulate};
  }
};

template <class T>
void RunBackward(const BackwardTask<T>& task, std::span<const Segment> segments) {
  const int64_t n_kv_heads = task.spec.n_kv_heads;
  task.ops.pool().ParallelFor(
      static_cast<int64_t>(segments.size()) * n_kv_heads, [&](int64_t index, int worker) {
        task.Run(segments[static_cast<size_t>(index / n_kv_heads)], index % n_kv_heads, worker);
      });
}

// Keys (or values) of all heads, `dim` wide, in `n_blocks` blocks.
int64_t KvBytes(const AttentionSpec& spec, DType dtype, int64_t dim, int64_t n_blocks) {
  return RoundUp<int64_t>(n_blocks * spec.n_kv_heads * engine::KvHeadBlockBytes(dtype, dim), 64);
}

}  // namespace

int64_t AttentionScratchBytes(const AttentionSpec& spec, DType dtype, int64_t rows,
                              int64_t n_segments) {
  const int64_t n_blocks = rows / engine::kTokensPerBlock + n_segments;
  return KvBytes(spec, dtype, spec.head_dim, n_blocks) +
         KvBytes(spec, dtype, spec.value_dim(), n_blocks);
}

void AttentionForward(OpsContext& ops, const AttentionSpec& spec, const ConstMatrix& q,
                      const ConstMatrix& k, const ConstMatrix& v, std::span<const Segment> segments,
                      std::byte* kv_scratch, const Matrix& out, float* lse, const float* sinks) {
  int64_t n_blocks = 0;
  for (const Segment& segment : segments) n_blocks += BlocksOf(segment);
  std::vector<BlockId> blocks(static_cast<size_t>(n_blocks));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i].value = static_cast<uint32_t>(i);
  std::vector<engine::AttentionSlice> slices;
  slices.reserve(segments.size());
  size_t first_block = 0;
  for (const Segment& segment : segments) {
    const auto count = static_cast<size_t>(BlocksOf(segment));
    slices.push_back({.first_row = segment.first_row,
                      .n_rows = segment.n_rows,
                      .first_position = 0,
                      .blocks = std::span(blocks).subspan(first_block, count)});
    first_block += count;
  }
  const engine::KvLayerView kv{
      .keys = kv_scratch,
      .values = kv_scratch + KvBytes(spec, k.dtype, spec.head_dim, n_blocks),
      .key_stride_bytes = spec.n_kv_heads * engine::KvHeadBlockBytes(k.dtype, spec.head_dim),
      .value_stride_bytes = spec.n_kv_heads * engine::KvHeadBlockBytes(k.dtype, spec.value_dim()),
      .dtype = k.dtype};
  engine::WriteKv(ops, spec, k, v, slices, kv);
  engine::Attention(ops, spec, q, slices, kv, out, lse, sinks);
}

int64_t AttentionBackwardScratchBytes(const AttentionSpec& spec, DType dtype,
                                      int64_t segment_rows) {
  return static_cast<int64_t>(dtype == DType::kBF16 ? BackwardBytes<Bf16>(segment_rows, spec)
                                                    : BackwardBytes<float>(segment_rows, spec));
}

void AttentionBackward(OpsContext& ops, const AttentionSpec& spec, const ConstMatrix& q,
                       const ConstMatrix& k, const ConstMatrix& v, const ConstMatrix& out,
                       const float* lse, const float* dout, std::span<const Segment> segments,
                       float* dq, float* dk, float* dv) {
  TANDEM_CHECK(spec.value_dim() <= 512);
  if (q.dtype == DType::kBF16) {
    RunBackward(BackwardTask<Bf16>{ops, spec, q, k, v, out, lse, dout, dq, dk, dv}, segments);
  } else {
    RunBackward(BackwardTask<float>{ops, spec, q, k, v, out, lse, dout, dq, dk, dv}, segments);
  }
}

void SinkBackward(OpsContext& ops, const AttentionSpec& spec, const float* sinks,
                  const ConstMatrix& out, const float* lse, const float* dout, float* dsinks) {
  TANDEM_CHECK(spec.value_dim() <= 512);
  const auto& gradients = engine::TrainingKernels(ops.kernels());
  const int64_t dim = spec.value_dim();
  ops.pool().ParallelFor(spec.n_heads, [&](int64_t head, int) {
    float out_row[512];
    for (int64_t row = 0; row < out.rows; ++row) {
      for (int64_t i = 0; i < dim; ++i) {
        const int64_t at = row * out.stride + head * dim + i;
        out_row[i] = out.dtype == DType::kBF16 ? AsFloat(static_cast<const Bf16*>(out.data)[at])
                                               : static_cast<const float*>(out.data)[at];
      }
      const float delta = gradients.dot(dout + (row * spec.n_heads + head) * dim, out_row, dim);
      dsinks[head] -= std::exp(sinks[head] - lse[row * spec.n_heads + head]) * delta;
    }
  });
}

}  // namespace tandem::training
