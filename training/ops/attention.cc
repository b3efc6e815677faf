// Attention over packed segments.
//
// The forward is serving's: each segment's keys and values go into KV blocks of their own, at
// positions counted from the segment's start, and engine::Attention computes the rest.
//
// A sink enters the backward pass (attention_backward.cc) through lse alone. rowsum(dO O) stays the
// sum of P dP, since a sink has no value.

#include "training/ops/attention.h"

#include <cmath>
#include <vector>

#include "engine/base/check.h"
#include "engine/kernels/training_kernels.h"
#include "engine/ops/parallel.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::training {
namespace {

using engine::AttentionSpec;
using engine::Bf16;
using engine::ConstMatrix;
using engine::DType;
using engine::Matrix;
using engine::OpsContext;

int64_t BlocksOf(const Segment& segment) {
  return (segment.n_rows + engine::kTokensPerBlock - 1) / engine::kTokensPerBlock;
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

void SinkBackward(OpsContext& ops, const AttentionSpec& spec, const float* sinks,
                  const ConstMatrix& out, const float* lse, const float* dout, float* dsinks) {
  const auto& gradients = engine::TrainingKernels(ops.kernels());
  const int64_t dim = spec.value_dim();
  engine::ReserveWorkerScratch(ops, static_cast<size_t>(dim) * sizeof(float));
  ops.pool().ParallelFor(spec.n_heads, [&](int64_t head, int worker) {
    float* const out_row = reinterpret_cast<float*>(ops.WorkerScratch(worker, 0));
    for (int64_t row = 0; row < out.rows; ++row) {
      for (int64_t i = 0; i < dim; ++i) {
        const int64_t at = row * out.stride + head * dim + i;
        out_row[i] = out.dtype == DType::kBF16
                         ? engine::Bf16ToFloat(static_cast<const Bf16*>(out.data)[at])
                         : static_cast<const float*>(out.data)[at];
      }
      const float delta = gradients.dot(dout + (row * spec.n_heads + head) * dim, out_row, dim);
      dsinks[head] -= std::exp(sinks[head] - lse[row * spec.n_heads + head]) * delta;
    }
  });
}

}  // namespace tandem::training
