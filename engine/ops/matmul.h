#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "engine/base/ids.h"
#include "engine/kernels/block_formats.h"
#include "engine/ops/ops_context.h"
#include "engine/tensor/tensor.h"

namespace tandem::engine {

// Row-major activations in the compute dtype (f32 or bf16). `stride` counts elements; for bf16 it
// is even and columns [cols, RoundUp(cols, 2)) hold zeros, so kernels can process pairs.
struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
};

// A weight [n, k] (out, in) in panels (engine/kernels/kernels.h), or in blocks of integers
// (engine/kernels/block_formats.h). Borrows; the bytes are 64-byte aligned and may be a mapped file
// shared by processes.
struct PanelMatrix {
  const std::byte* panels = nullptr;
  DType dtype = DType::kF32;  // compute dtype; without blocks also the panels' dtype
  int64_t n = 0;
  int64_t k = 0;
  BlockFormat block = BlockFormat::kNone;  // REQUIRES when set: dtype bf16
};

// Bytes of the panels of an [n, k] weight, padding included.
int64_t PanelBytes(DType dtype, int64_t n, int64_t k);
// Bytes of a weight in blocks.
int64_t PanelBytes(BlockFormat block, int64_t n, int64_t k);
// Row stride of a compute-dtype activation with `cols` columns.
int64_t RowStride(DType dtype, int64_t cols);

// Layout of the source rows: [n, k] as Hugging Face stores linear layers, or [k, n] as JAX and
// GPT-2's Conv1D do.
enum class SourceLayout { kOutIn, kInOut };

// Packs a floating-point source tensor of n*k elements into panels, rounding to `dtype` once.
void PackPanels(OpsContext& ops, const ConstTensorView& source, SourceLayout layout, int64_t n,
                int64_t k, DType dtype, std::byte* panels);
// The error of rounding a weight to blocks, over its elements.
struct BlockError {
  double squared_error = 0;
  double squared = 0;  // of the source
  double max_abs = 0;  // the largest error of one element

  void Add(const BlockError& other);
  double Relative() const;  // root of the ratio; 0 for a weight of zeros
};
// Packs into blocks and rounds each group with QuantizeGroup. The error is not finite when a value
// is not finite or too large for the format's scales.
BlockError PackBlockPanels(OpsContext& ops, const ConstTensorView& source, SourceLayout layout,
                           int64_t n, int64_t k, BlockFormat block, std::byte* panels);
// Rearranges the super-blocks of GGUF's Q4_K into panels of q4_k without changing any number.
// row_data(row) returns the k / 256 super-blocks of a row in the file's layout; any worker calls
// it. The error is zero, or not finite when a number is not. Throws kUnsupported when k is not a
// multiple of 256; the caller adds the tensor's name.
BlockError PackQ4K(OpsContext& ops, const std::function<const std::byte*(int64_t row)>& row_data,
                   int64_t n, int64_t k, std::byte* panels);
// Exact inverse of the functions above: row-major [n, k] f32.
void UnpackPanels(const PanelMatrix& w, float* out);

// y[rows, n] = x . W^T + bias; f32 sums in k order. y rows are ldy floats apart. For a weight in
// blocks, each row of x is rounded to integers first, independently.
void MatMul(OpsContext& ops, const ConstMatrix& x, const PanelMatrix& w, const float* bias,
            float* y, int64_t ldy);

// dx[rows, k] (+)= dy[rows, n] . W, read from the same panels: 16x16 blocks are transposed on the
// way. dy is in the compute dtype; dx is f32. A weight in blocks is widened to bf16 piece by piece.
// Its gradient is that of a product with the blocks' values: the rounding of x to integers in
// MatMul is passed straight through.
void MatMulInputGrad(OpsContext& ops, const ConstMatrix& dy, const PanelMatrix& w, float* dx,
                     int64_t lddx, bool accumulate);

// dw[n, k] (+)= dy[rows, n]^T . x[rows, k]. Rows are reduced in fixed blocks of 1,024 in order, so
// splitting a batch at multiples of 1,024 rows changes nothing. dw is row-major f32, [n, k].
void MatMulWeightGrad(OpsContext& ops, const ConstMatrix& dy, const ConstMatrix& x, float* dw,
                      bool accumulate);

// out[i, :] = row ids[i] of the table as f32 (an embedding look-up from panels). An id beyond the
// table has row 0, as in transformers' tables of layer inputs. REQUIRES: ids >= 0.
void GatherRows(OpsContext& ops, const PanelMatrix& table, std::span<const TokenId> ids, float* out,
                int64_t ldout);

}  // namespace tandem::engine
