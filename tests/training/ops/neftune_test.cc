#include "training/ops/neftune.h"

#include <algorithm>
#include <cmath>

#include "tests/training/ops/gradient_check.h"

namespace tandem::training {
namespace {

constexpr int64_t kNoiseWidth = 64;

// Noise on rows of zeros: rows of two samples, then padding.
Floats NoiseOf(engine::OpsContext& ops, int64_t first_length, int64_t second_length,
               uint64_t second_sample, float alpha) {
  std::vector<DropoutRow> sources;
  for (int64_t i = 0; i < first_length; ++i) sources.push_back({7, static_cast<uint32_t>(i)});
  for (int64_t i = 0; i < second_length; ++i) {
    sources.push_back({second_sample, static_cast<uint32_t>(i)});
  }
  sources.push_back({UINT64_MAX, 0});
  const std::vector<Segment> segments = {
      {0, first_length}, {first_length, second_length}, {first_length + second_length, 1}};
  Floats x(sources.size() * kNoiseWidth);
  AddNeftuneNoise(ops, sources, segments, alpha, 11, kNoiseWidth, x.data());
  return x;
}

TEST(NeftuneNoise, HasThePapersRangeAndTheMomentsOfUniformNoise) {
  ThreadPool pool(2);
  engine::OpsContext ops(engine::Kernels(), pool);
  const int64_t n_tokens = 100;
  const Floats x = NoiseOf(ops, n_tokens, 4, 8, 5);
  const double limit = 5 / std::sqrt(static_cast<double>(n_tokens * kNoiseWidth));
  double sum = 0;
  double squares = 0;
  double largest = 0;
  for (int64_t i = 0; i < n_tokens * kNoiseWidth; ++i) {
    sum += x[i];
    squares += static_cast<double>(x[i]) * x[i];
    largest = std::max(largest, std::abs(static_cast<double>(x[i])));
  }
  EXPECT_LE(largest, limit * 1.000001);
  EXPECT_GT(largest, limit * 0.99);
  EXPECT_NEAR(sum / (n_tokens * kNoiseWidth), 0, 0.03 * limit);
  EXPECT_NEAR(squares / (n_tokens * kNoiseWidth), limit * limit / 3, 0.03 * limit * limit);
  // Padding has none.
  EXPECT_TRUE(std::all_of(x.end() - kNoiseWidth, x.end(), [](float value) { return value == 0; }));
}

TEST(NeftuneNoise, DependsOnSampleAndPositionOnly) {
  ThreadPool one(1);
  ThreadPool three(3);
  engine::OpsContext ops(engine::Kernels(), one);
  engine::OpsContext threaded(engine::Kernels(), three);
  const Floats a = NoiseOf(ops, 5, 9, 8, 1);
  EXPECT_EQ(a, NoiseOf(threaded, 5, 9, 8, 1));
  const Floats b = NoiseOf(ops, 3, 9, 8, 1);  // sample 8 begins elsewhere
  EXPECT_TRUE(std::equal(a.begin() + 5 * kNoiseWidth, a.begin() + 14 * kNoiseWidth,
                         b.begin() + 3 * kNoiseWidth));
  EXPECT_NE(a, NoiseOf(ops, 5, 9, 9, 1));
}

}  // namespace
}  // namespace tandem::training
