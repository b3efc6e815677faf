// The backward pass of attention over packed segments.
//
// It is algorithm 2 of FlashAttention-2 (Dao, 2023) without the online part, because the forward's
// lse is known. Each (segment, KV head) takes one query block after the other. All products run
// through the table's matmul kernel.
//
//   S  = Q K^T              P = exp(scale S - lse)
//   dP = dO V^T             dS = P (dP - rowsum(dO O)) scale
//   dV^T += dO^T P          dK^T += Q^T dS          dQ = dS K
//
// dV and dK are transposed, so that the gradient kernel can write P and dS directly as panels. A
// strip of query blocks meets one tile of keys after the other. A tile's keys, values and gradients
// come from memory once per strip. Everything else stays in the second-level cache. A sum over
// queries or keys still takes its blocks in ascending order.
// One task owns a (segment, KV head): tasks share nothing and every order is fixed. Keys of another
// segment are never met.

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "engine/base/check.h"
#include "engine/kernels/arithmetic.h"
#include "engine/kernels/training_kernels.h"
#include "engine/ops/lane_panels.h"
#include "engine/ops/parallel.h"
#include "engine/tensor/bfloat16.h"
#include "training/ops/attention.h"
#include "training/ops/attention_buffers.h"

namespace tandem::training {
namespace {

using engine::AttentionSpec;
using engine::Bf16;
using engine::ConstMatrix;
using engine::DType;
using engine::kLanes;
using engine::MatMulArgs;
using engine::OpsContext;

// Products of bf16 are those of floats, except in tables that round them in their own way.
bool MultipliesPairs(const engine::KernelTable& kernels) {
  return engine::ArithmeticOf(kernels) != engine::kCommonArithmetic;
}

// Copies part of a row, widened where the matrix has bf16 and products have floats.
template <class T>
void CopyPart(const ConstMatrix& x, int64_t row, int64_t column, int64_t count, T* to) {
  const int64_t at = row * x.stride + column;
  if (x.dtype == (std::is_same_v<T, float> ? DType::kF32 : DType::kBF16)) {
    std::copy_n(static_cast<const T*>(x.data) + at, count, to);
  } else if constexpr (std::is_same_v<T, float>) {
    const Bf16* const from = static_cast<const Bf16*>(x.data) + at;
    for (int64_t i = 0; i < count; ++i) to[i] = engine::Bf16ToFloat(from[i]);
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
    int64_t in_strip;     // rows of the strip before it
    int64_t first_key;    // of the chunk that holds the first visible key
    int64_t end_key;

    int64_t first_row() const { return segment.first_row + first; }
  };

  void Run(const Segment& segment, int64_t kv_head, int worker) const {
    const int64_t dim = spec.head_dim;
    const int64_t value_dim = spec.value_dim();
    const int64_t keys = RoundUp(segment.n_rows, kLanes);
    Carver carver(ops.WorkerScratch(worker, 0));
    const BackwardBuffers<T> b(carver, keys, spec);
    for (int64_t first = 0; first < segment.n_rows; first += kKeyChunkRows) {
      PackKeys(segment, kv_head, first, b);
    }
    const int64_t ld = GradientStride(keys);
    std::memset(b.dk_transposed, 0, static_cast<size_t>(dim * ld) * sizeof(float));
    std::memset(b.dv_transposed, 0, static_cast<size_t>(value_dim * ld) * sizeof(float));

    const int64_t group = spec.n_heads / spec.n_kv_heads;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int64_t first = 0; first < segment.n_rows; first += kQueryStrip) {
        RunStrip(segment, head, first, std::min(kQueryStrip, segment.n_rows - first), b);
      }
    }
    AddTransposed(b.dk_transposed, ld, segment, kv_head, dim, b.columns, dk);
    AddTransposed(b.dv_transposed, ld, segment, kv_head, value_dim, b.columns, dv);
  }

  // Panels of a chunk of keys and values.
  void PackKeys(const Segment& segment, int64_t kv_head, int64_t first,
                const BackwardBuffers<T>& b) const {
    const int64_t dim = spec.head_dim;
    const int64_t value_dim = spec.value_dim();
    const int64_t padded_dim = RoundUp(dim, kRowPair<T>);
    const int64_t padded_value_dim = RoundUp(value_dim, kRowPair<T>);
    const int64_t rows = std::min(kKeyChunkRows, segment.n_rows - first);
    for (int64_t r = 0; r < rows; ++r) {
      CopyPart(v, segment.first_row + first + r, kv_head * value_dim, value_dim,
               b.rows + r * padded_value_dim);
    }
    engine::PackLanes(ops.kernels(), b.rows, padded_value_dim, rows, value_dim,
                      b.value_panels + first * padded_value_dim);
    for (int64_t r = 0; r < rows; ++r) {
      CopyPart(k, segment.first_row + first + r, kv_head * dim, dim, b.rows + r * padded_dim);
    }
    engine::PackLanes(ops.kernels(), b.rows, padded_dim, rows, dim,
                      b.key_panels + first * padded_dim);
    ops.kernels().typed<T>().pack_rows({.x = b.rows,
                                        .ldx = padded_dim,
                                        .rows = rows,
                                        .cols = dim,
                                        .out = b.key_columns + first * RoundUp(dim, kLanes)});
  }

  // Adds x [dim, keys], transposed, to a head's columns of `into`.
  void AddTransposed(const float* x, int64_t ldx, const Segment& segment, int64_t kv_head,
                     int64_t dim, float* columns, float* into) const {
    const auto& gradients = engine::TrainingKernels(ops.kernels());
    const int64_t ld = spec.n_kv_heads * dim;
    for (int64_t first = 0; first < segment.n_rows; first += kKeyChunkRows) {
      const int64_t count = std::min(kKeyChunkRows, segment.n_rows - first);
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

  // Causal attention needs no later keys, and no keys before the first row's window. Products start
  // at whole chunks: the skipped keys would add zeros.
  Block BlockAt(const Segment& segment, int64_t head, int64_t first, int64_t in_strip) const {
    const int64_t rows = std::min(kQueryBlock, segment.n_rows - first);
    return {.segment = segment,
            .head = head,
            .first = first,
            .rows = rows,
            .padded_rows = RoundUp(rows, kRowPair<T>),
            .in_strip = in_strip,
            .first_key = FirstKey(first) / kKeyChunkRows * kKeyChunkRows,
            .end_key = RoundUp(first + rows, kLanes)};
  }

  void RunStrip(const Segment& segment, int64_t head, int64_t first, int64_t rows,
                const BackwardBuffers<T>& b) const {
    const auto for_each_block = [&](const auto& body) {
      for (int64_t in_strip = 0; in_strip < rows; in_strip += kQueryBlock) {
        body(BlockAt(segment, head, first + in_strip, in_strip));
      }
    };
    for_each_block([&](const Block& block) { LoadRows(block, b); });
    const int64_t first_key = BlockAt(segment, head, first, 0).first_key;
    for (int64_t key = first_key; key < first + rows; key += kKeysAtOnce) {
      for_each_block([&](const Block& block) { RunTile(block, key, b); });
    }
    const auto& gradients = engine::TrainingKernels(ops.kernels());
    const int64_t dim = spec.head_dim;
    for (int64_t r = 0; r < rows; ++r) {
      gradients.accumulate(b.dq + r * dim, dim,
                           dq + ((segment.first_row + first + r) * spec.n_heads + head) * dim);
    }
  }

  // The part of the tile of keys at `first` that the block sees.
  void RunTile(const Block& block, int64_t first, const BackwardBuffers<T>& b) const {
    const int64_t key = std::max(first, block.first_key);
    const int64_t n_keys = std::min(first + kKeysAtOnce, block.end_key) - key;
    if (n_keys <= 0) return;
    FormScores(block, key, n_keys, b);
    AddKeyGradients(block, key, n_keys, b);
    AddQueryGradients(block, key, n_keys, b);
  }

  // Rows of Q and dO, their transposes, and rowsum(dO O).
  void LoadRows(const Block& block, const BackwardBuffers<T>& b) const {
    const int64_t dim = spec.head_dim;
    const int64_t value_dim = spec.value_dim();
    const int64_t padded_dim = RoundUp(dim, kRowPair<T>);
    const int64_t padded_value_dim = RoundUp(value_dim, kRowPair<T>);
    const int64_t ld_out = spec.n_heads * value_dim;
    const auto& kernels = ops.kernels().typed<T>();
    const auto& gradients = engine::TrainingKernels(ops.kernels());
    const float* dout_from = dout + block.first_row() * ld_out + block.head * value_dim;
    T* const q_rows = b.q_rows + block.in_strip * padded_dim;
    T* const dout_rows = b.dout_rows + block.in_strip * padded_value_dim;
    for (int64_t r = 0; r < block.rows; ++r) {
      T* q_to = q_rows + r * padded_dim;
      CopyPart(q, block.first_row() + r, block.head * dim, dim, q_to);
      if (padded_dim > dim) q_to[dim] = T{};
      float* const out_row = b.scores;  // free until the first tile
      CopyPart(out, block.first_row() + r, block.head * value_dim, value_dim, out_row);
      b.delta[block.in_strip + r] = gradients.dot(dout_from + r * ld_out, out_row, value_dim);
    }
    kernels.round({.x = dout_from,
                   .up = nullptr,
                   .ldx = ld_out,
                   .rows = block.rows,
                   .cols = value_dim,
                   .activation = engine::Activation::kSilu,
                   .y = dout_rows,
                   .ldy = padded_value_dim});
    kernels.transpose_rows({.x = q_rows,
                            .ldx = padded_dim,
                            .rows = block.rows,
                            .cols = dim,
                            .out = b.q_transposed + block.in_strip * dim,
                            .ldout = block.padded_rows});
    kernels.transpose_rows({.x = dout_rows,
                            .ldx = padded_value_dim,
                            .rows = block.rows,
                            .cols = value_dim,
                            .out = b.dout_transposed + block.in_strip * value_dim,
                            .ldout = block.padded_rows});
  }

  // P and dS of the block against keys [key, key + n_keys).
  void FormScores(const Block& block, int64_t key, int64_t n_keys,
                  const BackwardBuffers<T>& b) const {
    const auto& kernels = ops.kernels().typed<T>();
    const int64_t padded_dim = RoundUp(spec.head_dim, kRowPair<T>);
    const int64_t padded_value_dim = RoundUp(spec.value_dim(), kRowPair<T>);
    for (int64_t r = 0; r < block.rows; ++r) {
      b.last_key[r] = block.first + r - key;
      b.first_key[r] = FirstKey(block.first + r) - key;
    }
    kernels.matmul(Product(b.q_rows + block.in_strip * padded_dim, padded_dim, block.rows,
                           b.key_panels + key * padded_dim, n_keys, padded_dim, b.scores,
                           kScoreStride, false));
    kernels.matmul(Product(b.dout_rows + block.in_strip * padded_value_dim, padded_value_dim,
                           block.rows, b.value_panels + key * padded_value_dim, n_keys,
                           padded_value_dim, b.dp, kScoreStride, false));
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
                 .delta = b.delta + block.in_strip,
                 .scale = spec.scale,
                 .soft_cap = spec.soft_cap,
                 .p_panels = b.p_panels,
                 .ds_panels = b.ds_panels,
                 .ds_rows = b.ds_rows});
  }

  void AddKeyGradients(const Block& block, int64_t key, int64_t n_keys,
                       const BackwardBuffers<T>& b) const {
    const auto& kernels = ops.kernels().typed<T>();
    const int64_t dim = spec.head_dim;
    const int64_t value_dim = spec.value_dim();
    const int64_t rows = block.padded_rows;
    const int64_t ld = GradientStride(RoundUp(block.segment.n_rows, kLanes));
    kernels.matmul(Product(b.dout_transposed + block.in_strip * value_dim, rows, value_dim,
                           b.p_panels, n_keys, rows, b.dv_transposed + key, ld, true));
    kernels.matmul(Product(b.q_transposed + block.in_strip * dim, rows, dim, b.ds_panels, n_keys,
                           rows, b.dk_transposed + key, ld, true));
  }

  // dQ: chunks of keys, in order.
  void AddQueryGradients(const Block& block, int64_t first_key, int64_t n_keys,
                         const BackwardBuffers<T>& b) const {
    const auto& kernels = ops.kernels().typed<T>();
    const int64_t dim = spec.head_dim;
    const int64_t dim_lanes = RoundUp(dim, kLanes);
    float* const dq_block = b.dq + block.in_strip * dim;
    for (int64_t key = 0; key < n_keys; key += kKeyChunkRows) {
      // The chunk's panels end with its packed rows; dS is zero beyond the real keys.
      const int64_t left = block.segment.n_rows - first_key - key;
      const int64_t packed = RoundUp(std::min(kKeyChunkRows, left), kRowPair<T>);
      const T* columns = b.key_columns + (first_key + key) * dim_lanes;
      const int64_t chunk = std::min(packed, n_keys - key);
      const bool adds = first_key + key > block.first_key;
      if (chunk == packed) {
        MatMulArgs<T> args = Product(b.ds_rows + key, n_keys, block.rows, columns, dim_lanes,
                                     packed, dq_block, dim, adds);
        args.n_columns = dim;
        kernels.matmul(args);
        continue;
      }
      // This block sees only a prefix of the last chunk's packed keys: panel by panel.
      for (int64_t column = 0; column < dim_lanes; column += kLanes) {
        MatMulArgs<T> args = Product(b.ds_rows + key, n_keys, block.rows, columns + column * packed,
                                     kLanes, chunk, dq_block + column, dim, adds);
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

// The longest segments come first, so that no thread is left with one at the end.
template <class T>
void RunBackward(const BackwardTask<T>& task, std::span<const Segment> segments) {
  std::vector<const Segment*> by_length;
  by_length.reserve(segments.size());
  for (const Segment& segment : segments) by_length.push_back(&segment);
  std::ranges::stable_sort(by_length, std::ranges::greater(), &Segment::n_rows);
  const int64_t n_kv_heads = task.spec.n_kv_heads;
  if (!segments.empty()) {
    engine::ReserveWorkerScratch(task.ops, BackwardBytes<T>(by_length[0]->n_rows, task.spec));
  }
  task.ops.pool().ParallelFor(
      static_cast<int64_t>(segments.size()) * n_kv_heads, [&](int64_t index, int worker) {
        task.Run(*by_length[static_cast<size_t>(index / n_kv_heads)], index % n_kv_heads, worker);
      });
}

}  // namespace

int64_t AttentionBackwardScratchBytes(const AttentionSpec& spec, DType dtype,
                                      int64_t segment_rows) {
  size_t bytes = BackwardBytes<float>(segment_rows, spec);
  if (dtype == DType::kBF16) bytes = std::max(bytes, BackwardBytes<Bf16>(segment_rows, spec));
  return static_cast<int64_t>(bytes);
}

void AttentionBackward(OpsContext& ops, const AttentionSpec& spec, const ConstMatrix& q,
                       const ConstMatrix& k, const ConstMatrix& v, const ConstMatrix& out,
                       const float* lse, const float* dout, std::span<const Segment> segments,
                       float* dq, float* dk, float* dv) {
  TANDEM_CHECK(k.dtype == q.dtype && v.dtype == q.dtype && out.dtype == q.dtype);
  TANDEM_CHECK(spec.value_dim() <= kQueryBlock * kScoreStride);
  if (q.dtype == DType::kBF16 && MultipliesPairs(ops.kernels())) {
    RunBackward(BackwardTask<Bf16>{ops, spec, q, k, v, out, lse, dout, dq, dk, dv}, segments);
  } else {
    RunBackward(BackwardTask<float>{ops, spec, q, k, v, out, lse, dout, dq, dk, dv}, segments);
  }
}

}  // namespace tandem::training
