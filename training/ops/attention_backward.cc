// The backward pass of attention over packed segments.
//
// It is algorithm 2 of FlashAttention-2 (Dao, 2023) without the online part, because the forward's
// lse is known. It consists of small matrix products per (segment, KV head), one query block after
// the other, all through the table's matmul kernel:
//   S  = Q K^T              P = exp(scale S - lse)
//   dP = dO V^T             dS = P (dP - rowsum(dO O)) scale
//   dV^T += dO^T P          dK^T += Q^T dS          dQ = dS K
// dV and dK are transposed, so that the gradient kernel can write P and dS directly as panels. A
// query block sees its keys some hundred at a time, so all scores stay in the second-level cache.
// One task owns a (segment, KV head): tasks share nothing and every order is fixed.

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "engine/kernels/training_kernels.h"
#include "engine/ops/lane_panels.h"
#include "engine/tensor/bfloat16.h"
#include "training/ops/attention.h"

namespace tandem::training {
namespace {

using engine::AttentionSpec;
using engine::Bf16;
using engine::ConstMatrix;
using engine::DType;
using engine::kLanes;
using engine::MatMulArgs;
using engine::OpsContext;

constexpr int64_t kQueryBlock = 128;
// Keys per product dS K: panels of K are packed in chunks of this many keys.
constexpr int64_t kKeyTile = 128;
// Keys whose scores exist at a time, and their stride: rows a power of two apart would share a few
// sets of the first-level cache.
constexpr int64_t kKeysAtOnce = 2 * kKeyTile;
constexpr int64_t kScoreStride = kKeysAtOnce + kLanes;

// Stride of dK^T and dV^T, for the same reason.
int64_t GradientStride(int64_t keys) { return keys + kLanes; }
template <class T>
constexpr int64_t kPair = sizeof(T) == 2 ? 2 : 1;

float AsFloat(Bf16 value) { return engine::Bf16ToFloat(value); }
float AsFloat(float value) { return value; }

void RunGradient(const engine::TrainingKernelTable& kernels,
                 const engine::AttentionGradientArgs<float>& args) {
  kernels.attention_gradient_f32(args);
}
void RunGradient(const engine::TrainingKernelTable& kernels,
                 const engine::AttentionGradientArgs<Bf16>& args) {
  kernels.attention_gradient_bf16(args);
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
  float* dk_transposed;  // [dim, GradientStride(keys)]
  float* dv_transposed;
  T* q_rows;  // [block, padded dim]
  T* dout_rows;
  T* q_transposed;  // [dim, block]
  T* dout_transposed;
  float* scores;  // [block, kScoreStride]
  float* dp;
  T* p_panels;  // [block, kKeysAtOnce]
  T* ds_panels;
  T* ds_rows;
  float* dq_block;  // [block, dim]
  float* columns;   // [kKeyTile, dim or value dim]
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
    dk_transposed = carver.Take<float>(dim * GradientStride(keys));
    dv_transposed = carver.Take<float>(value_dim * GradientStride(keys));
    q_rows = carver.Take<T>(kQueryBlock * padded_dim);
    dout_rows = carver.Take<T>(kQueryBlock * padded_value_dim);
    q_transposed = carver.Take<T>(dim * kQueryBlock);
    dout_transposed = carver.Take<T>(value_dim * kQueryBlock);
    scores = carver.Take<float>(kQueryBlock * kScoreStride);
    dp = carver.Take<float>(kQueryBlock * kScoreStride);
    p_panels = carver.Take<T>(kQueryBlock * kKeysAtOnce);
    ds_panels = carver.Take<T>(kQueryBlock * kKeysAtOnce);
    ds_rows = carver.Take<T>(kQueryBlock * kKeysAtOnce);
    dq_block = carver.Take<float>(kQueryBlock * dim);
    columns = carver.Take<float>(kKeyTile * std::max(dim, value_dim));
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

  // Query rows of one head and one segment.
  struct Block {
    const Segment& segment;
    int64_t head;
    int64_t first;        // position of the first row
    int64_t rows;         // at most kQueryBlock
    int64_t padded_rows;  // to pairs
    int64_t ld;           // of dK^T and dV^T

    int64_t first_row() const { return segment.first_row + first; }
  };

  const T* Row(const ConstMatrix& x, int64_t row, int64_t column) const {
    return static_cast<const T*>(x.data) + row * x.stride + column;
  }

  void Run(const Segment& segment, int64_t kv_head, int worker) const {
    const int64_t dim = spec.head_dim;
    const int64_t value_dim = spec.value_dim();
    const int64_t keys = RoundUp(segment.n_rows, kLanes);
    Carver carver(ops.WorkerScratch(worker, BackwardBytes<T>(segment.n_rows, spec)));
    const BackwardBuffers<T> b(carver, keys, spec);
    const T* key_rows = Row(k, segment.first_row, kv_head * dim);
    engine::PackLanes(ops.kernels(), key_rows, k.stride, segment.n_rows, dim, b.key_panels);
    engine::PackLanes(ops.kernels(), Row(v, segment.first_row, kv_head * value_dim), v.stride,
                      segment.n_rows, value_dim, b.value_panels);
    const int64_t dim_lanes = RoundUp(dim, kLanes);
    for (int64_t first = 0; first < segment.n_rows; first += kKeyTile) {
      ops.kernels().typed<T>().pack_rows({.x = key_rows + first * k.stride,
                                          .ldx = k.stride,
                                          .rows = std::min(kKeyTile, segment.n_rows - first),
                                          .cols = dim,
                                          .out = b.key_columns + first * dim_lanes});
    }
    const int64_t ld = GradientStride(keys);
    std::memset(b.dk_transposed, 0, static_cast<size_t>(dim * ld) * sizeof(float));
    std::memset(b.dv_transposed, 0, static_cast<size_t>(value_dim * ld) * sizeof(float));

    const int64_t group = spec.n_heads / spec.n_kv_heads;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int64_t first = 0; first < segment.n_rows; first += kQueryBlock) {
        const int64_t rows = std::min(kQueryBlock, segment.n_rows - first);
        RunQueryBlock({segment, head, first, rows, RoundUp(rows, kPair<T>), ld}, b);
      }
    }
    AddTransposed(b.dk_transposed, ld, segment, kv_head, dim, b.columns, dk);
    AddTransposed(b.dv_transposed, ld, segment, kv_head, value_dim, b.columns, dv);
  }

  // Adds x [dim, keys], transposed, to a head's columns of `into`.
  void AddTransposed(const float* x, int64_t ldx, const Segment& segment, int64_t kv_head,
                     int64_t dim, float* columns, float* into) const {
    const auto& gradients = engine::TrainingKernels(ops.kernels());
    const int64_t ld = spec.n_kv_heads * dim;
    for (int64_t first = 0; first < segment.n_rows; first += kKeyTile) {
      const int64_t count = std::min(kKeyTile, segment.n_rows - first);
      ops.kernels().f32.transpose_rows(
          {.x = x + first, .ldx = ldx, .rows = dim, .cols = count, .out = columns, .ldout = dim});
      float* to = into + (segment.first_row + first) * ld + kv_head * dim;
      for (int64_t row = 0; row < count; ++row) {
        gradients.accumulate(columns + row * dim, dim, to + row * ld);
      }
    }
  }

  // The first key that the row at this position sees.
  int64_t FirstKey(int64_t position) const {
    if (spec.chunk > 0) return position / spec.chunk * spec.chunk;
    return spec.window > 0 ? std::max<int64_t>(0, position - spec.window + 1) : 0;
  }

  void RunQueryBlock(const Block& block, const BackwardBuffers<T>& b) const {
    LoadRows(block, b);
    // Causal attention needs no later keys, and no keys before the first row's window. Products
    // start at whole chunks: the skipped keys would add zeros.
    const int64_t start = FirstKey(block.first) / kKeyTile * kKeyTile;
    const int64_t end = RoundUp(block.first + block.rows, kLanes);
    for (int64_t key = start; key < end; key += kKeysAtOnce) {
      const int64_t n_keys = std::min(kKeysAtOnce, end - key);
      FormScores(block, key, n_keys, b);
      AddKeyGradients(block, key, n_keys, b);
      AddQueryGradients(block, key, n_keys, key == start, b);
    }
    const auto& gradients = engine::TrainingKernels(ops.kernels());
    const int64_t dim = spec.head_dim;
    for (int64_t r = 0; r < block.rows; ++r) {
      gradients.accumulate(b.dq_block + r * dim, dim,
                           dq + ((block.first_row() + r) * spec.n_heads + block.head) * dim);
    }
  }

  // Rows of Q and dO, their transposes, and rowsum(dO O).
  void LoadRows(const Block& block, const BackwardBuffers<T>& b) const {
    const int64_t dim = spec.head_dim;
    const int64_t value_dim = spec.value_dim();
    const int64_t padded_dim = RoundUp(dim, kPair<T>);
    const int64_t padded_value_dim = RoundUp(value_dim, kPair<T>);
    const int64_t ld_out = spec.n_heads * value_dim;
    const auto& kernels = ops.kernels().typed<T>();
    const auto& gradients = engine::TrainingKernels(ops.kernels());
    const float* dout_rows = dout + block.first_row() * ld_out + block.head * value_dim;
    for (int64_t r = 0; r < block.rows; ++r) {
      const T* q_from = Row(q, block.first_row() + r, block.head * dim);
      T* q_to = b.q_rows + r * padded_dim;
      std::copy_n(q_from, dim, q_to);
      if (padded_dim > dim) q_to[dim] = T{};
      const T* out_from = Row(out, block.first_row() + r, block.head * value_dim);
      float out_row[512];
      TANDEM_DCHECK(value_dim <= 512);
      for (int64_t i = 0; i < value_dim; ++i) out_row[i] = AsFloat(out_from[i]);
      b.delta[r] = gradients.dot(dout_rows + r * ld_out, out_row, value_dim);
    }
    kernels.round({.x = dout_rows,
                   .up = nullptr,
                   .ldx = ld_out,
                   .rows = block.rows,
                   .cols = value_dim,
                   .activation = engine::Activation::kSilu,
                   .y = b.dout_rows,
                   .ldy = padded_value_dim});
    kernels.transpose_rows({.x = b.q_rows,
                            .ldx = padded_dim,
                            .rows = block.rows,
                            .cols = dim,
                            .out = b.q_transposed,
                            .ldout = block.padded_rows});
    kernels.transpose_rows({.x = b.dout_rows,
                            .ldx = padded_value_dim,
                            .rows = block.rows,
                            .cols = value_dim,
                            .out = b.dout_transposed,
                            .ldout = block.padded_rows});
  }

  // P and dS of the block against keys [key, key + n_keys).
  void FormScores(const Block& block, int64_t key, int64_t n_keys,
                  const BackwardBuffers<T>& b) const {
    const auto& kernels = ops.kernels().typed<T>();
    const int64_t padded_dim = RoundUp(spec.head_dim, kPair<T>);
    const int64_t padded_value_dim = RoundUp(spec.value_dim(), kPair<T>);
    for (int64_t r = 0; r < block.rows; ++r) {
      b.last_key[r] = block.first + r - key;
      b.first_key[r] = FirstKey(block.first + r) - key;
    }
    kernels.matmul(Product(b.q_rows, padded_dim, block.rows, b.key_panels + key * padded_dim,
                           n_keys, padded_dim, b.scores, kScoreStride, false));
    kernels.matmul(Product(b.dout_rows, padded_value_dim, block.rows,
                           b.value_panels + key * padded_value_dim, n_keys, padded_value_dim, b.dp,
                           kScoreStride, false));
    RunGradient(engine::TrainingKernels(ops.kernels()),
                {.scores = b.scores,
                 .dp = b.dp,
                 .ld = kScoreStride,
                 .rows = block.rows,
                 .padded_rows = block.padded_rows,
                 .n_keys = n_keys,
                 .first_key = b.first_key,
                 .last_key = b.last_key,
                 .lse = lse + block.first_row() * spec.n_heads + block.head,
                 .lse_stride = spec.n_heads,
                 .delta = b.delta,
                 .scale = spec.scale,
                 .soft_cap = spec.soft_cap,
                 .p_panels = b.p_panels,
                 .ds_panels = b.ds_panels,
                 .ds_rows = b.ds_rows});
  }

  void AddKeyGradients(const Block& block, int64_t key, int64_t n_keys,
                       const BackwardBuffers<T>& b) const {
    const auto& kernels = ops.kernels().typed<T>();
    kernels.matmul(Product(b.dout_transposed, block.padded_rows, spec.value_dim(), b.p_panels,
                           n_keys, block.padded_rows, b.dv_transposed + key, block.ld, true));
    kernels.matmul(Product(b.q_transposed, block.padded_rows, spec.head_dim, b.ds_panels, n_keys,
                           block.padded_rows, b.dk_transposed + key, block.ld, true));
  }

  // dQ: chunks of keys, in order.
  void AddQueryGradients(const Block& block, int64_t first_key, int64_t n_keys, bool is_first,
                         const BackwardBuffers<T>& b) const {
    const auto& kernels = ops.kernels().typed<T>();
    const int64_t dim = spec.head_dim;
    const int64_t dim_lanes = RoundUp(dim, kLanes);
    for (int64_t key = 0; key < n_keys; key += kKeyTile) {
      // The chunk's panels end with its packed rows; dS is zero beyond the real keys.
      const int64_t left = block.segment.n_rows - first_key - key;
      const int64_t packed = RoundUp(std::min(kKeyTile, left), kPair<T>);
      const T* columns = b.key_columns + (first_key + key) * dim_lanes;
      const int64_t chunk = std::min(packed, n_keys - key);
      const bool adds = !is_first || key > 0;
      if (chunk == packed) {
        MatMulArgs<T> args = Product(b.ds_rows + key, n_keys, block.rows, columns, dim_lanes,
                                     packed, b.dq_block, dim, adds);
        args.n_columns = dim;
        kernels.matmul(args);
        continue;
      }
      // This block sees only a prefix of the last chunk's packed keys: panel by panel.
      for (int64_t column = 0; column < dim_lanes; column += kLanes) {
        MatMulArgs<T> args = Product(b.ds_rows + key, n_keys, block.rows, columns + column * packed,
                                     kLanes, chunk, b.dq_block + column, dim, adds);
        args.n_columns = std::min(kLanes, dim - column);
        kernels.matmul(args);
      }
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

}  // namespace

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

}  // namespace tandem::training
