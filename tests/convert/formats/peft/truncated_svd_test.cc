// Compares singular values with Eigen's full decomposition.

#include "convert/formats/peft/truncated_svd.h"

#include <gtest/gtest.h>

#include <Eigen/SVD>
#include <cmath>
#include <random>
#include <vector>

#include "engine/base/thread_pool.h"

namespace tandem::convert {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// A matrix whose i-th singular value is about decay^i times the first.
std::vector<float> Decaying(int64_t rows, int64_t cols, double decay, int64_t rank, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(static_cast<size_t>(rows * cols));
  std::vector<double> left(static_cast<size_t>(rows)), right(static_cast<size_t>(cols));
  for (int64_t i = 0; i < rank; ++i) {
    for (double& value : left) value = uniform(random);
    for (double& value : right) value = uniform(random) * std::pow(decay, i);
    for (size_t r = 0; r < left.size(); ++r) {
      for (size_t c = 0; c < right.size(); ++c) {
        values[r * right.size() + c] += static_cast<float>(left[r] * right[c]);
      }
    }
  }
  return values;
}

RowMajor AsMatrix(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
             values.data(), rows, cols)
      .cast<double>();
}

TruncatedSvd Svd(const std::vector<float>& values, int64_t rows, int64_t cols, int64_t rank,
                 int threads = 2) {
  ThreadPool pool(threads);
  return ComputeTruncatedSvd(values, rows, cols, rank, pool, [] {});
}

struct Case {
  int64_t rows, cols, rank;
  double decay;
  int64_t true_rank;
  double near;  // error of singular values, relative to the first
};

TEST(TruncatedSvd, HasTheLargestSingularValuesAndTheirVectors) {
  const std::vector<Case> cases = {
      {40, 70, 6, 0.7, 40, 1e-6},      {70, 40, 6, 0.7, 40, 1e-6},   {5, 200, 5, 0.9, 5, 1e-12},
      {200, 5, 3, 0.9, 5, 1e-12},      {64, 64, 64, 0.9, 64, 1e-12}, {100, 90, 4, 1, 4, 1e-12},
      {150, 100, 16, 0.95, 100, 1e-2}, {1, 1, 1, 1, 1, 1e-12},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.rows << " x " << c.cols << " rank " << c.rank);
    const std::vector<float> values = Decaying(c.rows, c.cols, c.decay, c.true_rank, 7);
    const RowMajor matrix = AsMatrix(values, c.rows, c.cols);
    const Eigen::VectorXd expected = Eigen::BDCSVD<RowMajor>(matrix).singularValues();

    const TruncatedSvd svd = Svd(values, c.rows, c.cols, c.rank);

    for (int64_t i = 0; i < c.rank; ++i) {
      EXPECT_NEAR(svd.values[static_cast<size_t>(i)], expected[i], c.near * expected[0]) << i;
    }
    const Eigen::Map<const RowMajor> left(svd.left.data(), c.rank, c.rows);
    const Eigen::Map<const RowMajor> right(svd.right.data(), c.rank, c.cols);
    const RowMajor identity = RowMajor::Identity(c.rank, c.rank);
    EXPECT_LT((left * left.transpose() - identity).norm(), 1e-8);
    EXPECT_LT((right * right.transpose() - identity).norm(), 1e-8);
    // The residual has little more than the norm of the smaller singular values.
    const Eigen::Map<const Eigen::VectorXd> sizes(svd.values.data(), c.rank);
    const double error = (matrix - left.transpose() * sizes.asDiagonal() * right).norm();
    const double best = expected.tail(expected.size() - c.rank).norm();
    EXPECT_LE(error, best * (1 + c.near) + 1e-12 * matrix.norm());
    EXPECT_GE(error, best * (1 - 1e-9));
  }
}

TEST(TruncatedSvd, AMatrixOfLowerRankHasZerosAndNoOtherVectors) {
  std::vector<float> values(30 * 20);
  values[7 * 20 + 3] = -2;
  const TruncatedSvd svd = Svd(values, 30, 20, 4);
  EXPECT_DOUBLE_EQ(svd.values[0], 2);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(svd.values[i], 0);
  for (size_t i = 30; i < svd.left.size(); ++i) EXPECT_EQ(svd.left[i], 0);
  for (size_t i = 20; i < svd.right.size(); ++i) EXPECT_EQ(svd.right[i], 0);
  EXPECT_DOUBLE_EQ(svd.left[7] * svd.right[3], -1);
}

TEST(TruncatedSvd, ThreadsChangeNoBit) {
  const std::vector<float> values = Decaying(150, 260, 0.98, 150, 3);
  const TruncatedSvd one = Svd(values, 150, 260, 12, 1);
  for (const int threads : {2, 5}) {
    const TruncatedSvd more = Svd(values, 150, 260, 12, threads);
    EXPECT_EQ(more.values, one.values);
    EXPECT_EQ(more.left, one.left);
    EXPECT_EQ(more.right, one.right);
  }
}

TEST(TruncatedSvd, IsEndedByWhatPauseThrows) {
  ThreadPool pool(2);
  const std::vector<float> values(16, 1);
  EXPECT_THROW(ComputeTruncatedSvd(values, 4, 4, 1, pool, [] { throw 1; }), int);
}

}  // namespace
}  // namespace tandem::convert
