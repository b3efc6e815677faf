#include "bench/load/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"

namespace tandem::bench {
namespace {

using Process = ArrivalOptions::Process;

TEST(Arrivals, AConstantProcessKeepsItsGapsOverAnyTime) {
  const auto times =
      ArrivalTimes({.process = Process::kConstant, .requests_per_s = 3, .requests = 30'001});

  ASSERT_EQ(times.size(), 30'001u);
  EXPECT_EQ(times[0], 0);
  EXPECT_NEAR(times[1], 1.0 / 3, 1e-12);
  EXPECT_NEAR(times[30'000], 10'000, 1e-9);
}

TEST(Arrivals, ADurationBoundsTheBeginnings) {
  const auto times =
      ArrivalTimes({.process = Process::kConstant, .requests_per_s = 10, .duration_s = 2});

  ASSERT_EQ(times.size(), 20u);
  EXPECT_LT(times.back(), 2);
}

// Gaps of a Poisson process have mean and deviation 1/rate; a share of e^-1 is longer than the
// mean.
TEST(Arrivals, APoissonProcessHasExponentialGaps) {
  constexpr int64_t kRequests = 20'000;
  const auto times = ArrivalTimes({.requests_per_s = 50, .requests = kRequests, .seed = 3});

  ASSERT_EQ(times.size(), static_cast<size_t>(kRequests));
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  double sum = times[0], squares = times[0] * times[0];
  int64_t long_gaps = 0;
  for (size_t i = 1; i < times.size(); ++i) {
    const double gap = times[i] - times[i - 1];
    sum += gap;
    squares += gap * gap;
    long_gaps += gap > 0.02 ? 1 : 0;
  }
  const double mean = sum / kRequests;
  // Four standard errors: for the mean 4 * 0.02 / sqrt(20000), and likewise for the others.
  EXPECT_NEAR(mean, 0.02, 0.0006);
  EXPECT_NEAR(std::sqrt(squares / kRequests - mean * mean), 0.02, 0.0012);
  EXPECT_NEAR(static_cast<double>(long_gaps) / kRequests, std::exp(-1), 0.014);
}

TEST(Arrivals, ASeedGivesTheSameTimesAndAnotherGivesOthers) {
  const ArrivalOptions options{.requests_per_s = 5, .requests = 10, .seed = 1};
  ArrivalOptions other = options;
  other.seed = 2;

  EXPECT_EQ(ArrivalTimes(options), ArrivalTimes(options));
  EXPECT_NE(ArrivalTimes(options), ArrivalTimes(other));
}

TEST(Arrivals, NoRateAndNoEndAreRefused) {
  EXPECT_THROW(ArrivalTimes({.requests_per_s = 0, .requests = 1}), Error);
  EXPECT_THROW(ArrivalTimes({.requests_per_s = 1}), Error);
}

}  // namespace
}  // namespace tandem::bench
