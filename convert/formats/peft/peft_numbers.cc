#include "convert/formats/peft/peft_numbers.h"

#include <algorithm>
#include <cmath>

#include "convert/formats/peft/truncated_svd.h"

namespace tandem::convert {
namespace {

using engine::ConstTensorView;

constexpr int64_t kPeftPieceElements = 1 << 18;  // per task and model, as f32

// Converts out.size() numbers of a tensor from index `first` on.
void Widen(const ConstTensorView& view, ModelSource::Bytes bytes, int64_t first,
           std::span<float> out) {
  const auto size = static_cast<int64_t>(DTypeBytes(view.dtype));
  engine::ConvertToF32(
      {bytes.data() + first * size, view.dtype, {static_cast<int64_t>(out.size())}}, out);
}

// Splits each singular value, divided by the adapter's scale, evenly between the factors.
LowRankFactors Split(const TruncatedSvd& svd, float scale, int64_t rows, int64_t cols) {
  LowRankFactors factors{std::vector<float>(svd.left.size()), std::vector<float>(svd.right.size())};
  for (int64_t i = 0; i < svd.rank; ++i) {
    const double factor = std::sqrt(svd.values[static_cast<size_t>(i)] / scale);
    for (int64_t r = 0; r < rows; ++r) {
      factors.left[static_cast<size_t>(r * svd.rank + i)] =
          static_cast<float>(factor * svd.left[static_cast<size_t>(i * rows + r)]);
    }
    for (int64_t c = 0; c < cols; ++c) {
      const auto at = static_cast<size_t>(i * cols + c);
      factors.right[at] = static_cast<float>(factor * svd.right[at]);
    }
  }
  return factors;
}

double Error2(const std::vector<float>& difference, const LowRankFactors& factors, int64_t rank,
              float scale, int64_t rows, int64_t cols, ThreadPool& pool) {
  std::vector<double> sums(static_cast<size_t>(rows));
  std::vector<double> buffers(static_cast<size_t>(cols * pool.n_threads()));
  pool.ParallelFor(rows, [&](int64_t row, int worker) {
    double* product = buffers.data() + cols * worker;
    std::fill_n(product, cols, 0.0);
    for (int64_t i = 0; i < rank; ++i) {
      const double left = factors.left[static_cast<size_t>(row * rank + i)];
      const float* right = factors.right.data() + i * cols;
      for (int64_t c = 0; c < cols; ++c) product[c] += left * right[c];
    }
    for (int64_t c = 0; c < cols; ++c) {
      const double error = difference[static_cast<size_t>(row * cols + c)] - scale * product[c];
      sums[static_cast<size_t>(row)] += error * error;
    }
  });
  double sum = 0;
  for (const double of_row : sums) sum += of_row;
  return sum;
}

}  // namespace

WeightDifference::WeightDifference(const ConstTensorView& view, ModelSource::Bytes bytes,
                                   const ConstTensorView& base_view, ModelSource::Bytes base_bytes,
                                   ThreadPool& pool)
    : view_(view), bytes_(bytes), base_view_(base_view), base_bytes_(base_bytes), pool_(pool) {}

// Adds the sums of pieces in order.
Norms WeightDifference::Measure() const {
  const int64_t n_pieces = (view_.elements() + kPeftPieceElements - 1) / kPeftPieceElements;
  std::vector<Norms> pieces(static_cast<size_t>(n_pieces));
  ForPieces([&](int64_t first, std::span<const float> is, std::span<const float> was) {
    Norms& norms = pieces[static_cast<size_t>(first / kPeftPieceElements)];
    for (size_t i = 0; i < is.size(); ++i) {
      const float difference = is[i] - was[i];
      norms.change2 += static_cast<double>(difference) * difference;
      norms.base2 += static_cast<double>(was[i]) * was[i];
    }
  });
  Norms all;
  for (const Norms& norms : pieces) {
    all.change2 += norms.change2;
    all.base2 += norms.base2;
  }
  return all;
}

std::vector<float> WeightDifference::Values() const {
  std::vector<float> values(static_cast<size_t>(view_.elements()));
  ForPieces([&](int64_t first, std::span<const float> is, std::span<const float> was) {
    for (size_t i = 0; i < is.size(); ++i) {
      values[static_cast<size_t>(first) + i] = is[i] - was[i];
    }
  });
  return values;
}

void WeightDifference::ForPieces(const Visit& visit) const {
  const int64_t elements = view_.elements();
  const int64_t most = std::min(kPeftPieceElements, elements);
  std::vector<float> buffers(static_cast<size_t>(2 * most * pool_.n_threads()));
  const auto piece = [&](int64_t index, int worker) {
    const int64_t first = index * kPeftPieceElements;
    const auto count = static_cast<size_t>(std::min(kPeftPieceElements, elements - first));
    const std::span is(buffers.data() + 2 * most * worker, count);
    const std::span was(buffers.data() + 2 * most * worker + most, count);
    Widen(view_, bytes_, first, is);
    Widen(base_view_, base_bytes_, first, was);
    visit(first, is, was);
  };
  pool_.ParallelFor((elements + kPeftPieceElements - 1) / kPeftPieceElements, std::cref(piece));
}

LowRankFactors Factorise(const std::vector<float>& difference, int64_t rows, int64_t cols,
                         int64_t rank, float scale, ThreadPool& pool,
                         const std::function<void()>& pause) {
  const int64_t computed = std::min({rank, rows, cols});
  TruncatedSvd svd = ComputeTruncatedSvd(difference, rows, cols, computed, pool, pause);
  svd.rank = rank;
  svd.values.resize(static_cast<size_t>(rank));
  svd.left.resize(static_cast<size_t>(rank * rows));
  svd.right.resize(static_cast<size_t>(rank * cols));
  LowRankFactors factors = Split(svd, scale, rows, cols);
  pause();
  factors.error2 = Error2(difference, factors, rank, scale, rows, cols, pool);
  return factors;
}

std::vector<float> TransposedCopy(const std::vector<float>& from, int64_t rows, int64_t cols) {
  std::vector<float> to(from.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      to[static_cast<size_t>(c * rows + r)] = from[static_cast<size_t>(r * cols + c)];
    }
  }
  return to;
}

}  // namespace tandem::convert
