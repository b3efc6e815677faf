#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/kernels/kernels.h"  // Activation
#include "engine/ops/matmul.h"
#include "engine/ops/ops_context.h"

namespace tandem::engine {

// Row-wise ops. Inputs are f32. An output that feeds a matrix product may be in the compute dtype,
// rounded once (to nearest even); other outputs are f32. Reductions over a row use 16 lanes and a
// fixed tree, so a row's result depends on that row alone.

// Writable counterpart of ConstMatrix. Ops that write bf16 also write the zero padding column.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  // NOLINTNEXTLINE(google-explicit-constructor): a writable matrix is a readable one
  operator ConstMatrix() const { return {data, dtype, rows, cols, stride}; }
};

// Only the first rotary dimensions of a head rotate, two for each frequency.
struct RopeForm {
  int64_t head_dim = 0;      // 0: all dimensions rotate
  bool interleaved = false;  // dimension 2i pairs with 2i + 1, as in RoFormer's own code
  // Cosines and sines grow with the position p by 1 + growth * ln(1 + floor((p + growth_shift) /
  // growth_period)).
  double growth = 0;
  int64_t growth_period = 1;
  int64_t growth_shift = 0;
};

// Rotary embedding of RoFormer, by default in the half-split order of Hugging Face (dimension i
// pairs with i + rotary_dim/2); angles position * frequency[i] are computed in double and stored as
// f32. Rows are computed when a position is first requested, so a long context costs time and
// memory only for the used part. Any thread.
class RopeTable {
 public:
  // `frequencies` has rotary_dim/2 entries, any scaling already applied; cosines and sines are
  // multiplied by `amplitude`.
  RopeTable(std::span<const double> frequencies, int64_t max_positions, double amplitude = 1,
            RopeForm form = {});
  int64_t head_dim() const { return form_.head_dim; }
  int64_t rotary_dim() const { return rotary_dim_; }
  bool interleaved() const { return form_.interleaved; }
  int64_t max_positions() const { return max_positions_; }
  // Returns rows that cover all of `positions`: [position][cos: rotary_dim/2 | sin: rotary_dim/2].
  // Every position must be in [0, max_positions).
  const float* RowsOf(std::span<const int32_t> positions) const;

 private:
  struct Rows {
    explicit Rows(size_t bytes) : values(bytes) {}
    AlignedBuffer values;  // [max_positions][rotary_dim]; untouched beyond n_filled
    std::mutex filling;
    std::atomic<int64_t> n_filled = 0;
  };

  std::vector<double> frequencies_;
  double amplitude_;
  int64_t rotary_dim_;
  RopeForm form_;
  int64_t max_positions_;
  std::unique_ptr<Rows> rows_;
};

// y = x / sqrt(mean(x^2) + eps) * gamma. `rstd` (rows floats) may be null.
void RmsNorm(OpsContext& ops, const float* x, int64_t ldx, const float* gamma, float eps,
             const Matrix& y, float* rstd);
// RmsNorm of every run of `length` columns (a head, or the whole row); x and y are f32 and dense.
// `rstd` has a float per run.
void RmsNormRuns(OpsContext& ops, const float* x, const float* gamma, int64_t length, float eps,
                 const Matrix& y, float* rstd);
// y = (x - mean) / sqrt(var + eps) * gamma + beta. A null gamma means ones, a null beta zeros.
// `mean_rstd` (rows x 2 floats) may be null.
void LayerNorm(OpsContext& ops, const float* x, int64_t ldx, const float* gamma, const float* beta,
               float eps, const Matrix& y, float* mean_rstd);
// Rotates each of cols / head_dim heads of each row by its position and copies the dimensions past
// rotary_dim; f32 in, y's dtype out.
void Rope(OpsContext& ops, const float* x, int64_t ldx, std::span<const int32_t> positions,
          const RopeTable& table, const Matrix& y);
// y = activation(gate) * up.
void GatedActivation(OpsContext& ops, const float* gate, const float* up, int64_t ld,
                     Activation activation, const Matrix& y);
void Activate(OpsContext& ops, const float* x, int64_t ldx, Activation activation, const Matrix& y);
// y = a + b, all f32 and dense (rows * cols elements).
void AddRows(OpsContext& ops, const float* a, const float* b, int64_t elements, float* y);
// y = a * b, element by element.
void MultiplyRows(OpsContext& ops, const float* a, const float* b, int64_t elements, float* y);
// y = x limited to [-limit, limit].
void ClampRows(OpsContext& ops, const float* x, float limit, int64_t elements, float* y);
// y = 1 / (1 + exp(-x)).
void SigmoidRows(OpsContext& ops, const float* x, int64_t elements, float* y);
// y = factor * x.
void ScaleRows(OpsContext& ops, const float* x, float factor, int64_t elements, float* y);
// y = cap * tanh(x / cap).
void SoftCapRows(OpsContext& ops, const float* x, float cap, int64_t elements, float* y);
// x = cap * tanh(x / cap).
void SoftCap(OpsContext& ops, float cap, int64_t elements, float* x);
// Rounds f32 to the compute dtype (a copy when that is f32).
void RoundRows(OpsContext& ops, const float* x, int64_t ldx, const Matrix& y);

}  // namespace tandem::engine
