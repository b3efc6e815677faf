#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "convert/tensors/model_source.h"
#include "engine/base/thread_pool.h"
#include "engine/tensor/tensor.h"

namespace tandem::convert {

// Arithmetic of peft.cc. Results do not depend on the number of threads.

// Sums of squares.
struct Norms {
  double change2 = 0;
  double base2 = 0;
};

// Difference of a weight from the base's, element by element in f32. Holds references to all
// arguments. REQUIRES: equal shapes, floating-point types.
class WeightDifference {
 public:
  WeightDifference(const engine::ConstTensorView& view, ModelSource::Bytes bytes,
                   const engine::ConstTensorView& base_view, ModelSource::Bytes base_bytes,
                   ThreadPool& pool);

  Norms Measure() const;              // not finite if the difference is not
  std::vector<float> Values() const;  // in the shape's order

 private:
  using Visit =
      std::function<void(int64_t first, std::span<const float> is, std::span<const float> was)>;
  void ForPieces(const Visit& visit) const;

  const engine::ConstTensorView& view_;
  const ModelSource::Bytes bytes_;
  const engine::ConstTensorView& base_view_;
  const ModelSource::Bytes base_bytes_;
  ThreadPool& pool_;
};

// Two matrices whose product, times the adapter's scale, approximates a difference D [rows, cols].
struct LowRankFactors {
  std::vector<float> left;   // [rows, rank]
  std::vector<float> right;  // [rank, cols]
  double error2 = 0;         // |D - scale left right|², with the f32 factors
};

// Returns the truncated SVD with each singular value split evenly. A rank above min(rows, cols)
// adds zeros. `pause` and other requirements as for ComputeTruncatedSvd.
LowRankFactors Factorise(const std::vector<float>& difference, int64_t rows, int64_t cols,
                         int64_t rank, float scale, ThreadPool& pool,
                         const std::function<void()>& pause);

// Returns the transpose [cols, rows].
std::vector<float> TransposedCopy(const std::vector<float>& from, int64_t rows, int64_t cols);

}  // namespace tandem::convert
