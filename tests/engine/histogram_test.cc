#include "engine/api/histogram.h"

#include <gtest/gtest.h>

#include <array>

namespace tandem {
namespace {

constexpr std::array kBounds{1.0, 2.0, 5.0};

TEST(Histogram, ABoundBelongsToItsBucketAndMoreToTheLast) {
  Histogram histogram(kBounds);
  for (const double value : {0.0, 1.0, 1.5, 2.0, 5.0, 5.1, 100.0}) histogram.Observe(value);

  EXPECT_EQ(std::vector<uint64_t>(histogram.counts().begin(), histogram.counts().end()),
            (std::vector<uint64_t>{2, 2, 1, 2}));
  EXPECT_EQ(histogram.total(), 7u);
  EXPECT_DOUBLE_EQ(histogram.sum(), 114.6);
}

TEST(Histogram, AddJoinsCountsAndSums) {
  Histogram a(kBounds);
  Histogram b(kBounds);
  a.Observe(1);
  b.Observe(1);
  b.Observe(7);
  a.Add(b);

  EXPECT_EQ(a.counts()[0], 2u);
  EXPECT_EQ(a.counts()[3], 1u);
  EXPECT_DOUBLE_EQ(a.sum(), 9);
}

}  // namespace
}  // namespace tandem
