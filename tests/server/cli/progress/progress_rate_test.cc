#include "server/cli/progress/progress_rate.h"

#include <gtest/gtest.h>

namespace tandem::server {
namespace {

using namespace std::chrono_literals;

constexpr ProgressRate::Time kStart{1h};

TEST(ProgressRate, KnowsNothingFromOneReading) {
  ProgressRate rate;
  rate.Add(kStart, 500);

  EXPECT_EQ(rate.per_second(), 0);
  EXPECT_EQ(rate.SecondsLeft(1000), 0);
}

TEST(ProgressRate, EstimatesTheTimeLeftFromTheRecentSpeed) {
  ProgressRate rate;
  for (int i = 0; i <= 10; ++i) rate.Add(kStart + i * 1s, 1000 + i * 50);

  EXPECT_DOUBLE_EQ(rate.per_second(), 50);
  EXPECT_DOUBLE_EQ(rate.SecondsLeft(2000), 10);
  EXPECT_EQ(rate.SecondsLeft(1500), 0);
}

TEST(ProgressRate, DoesNotCountWhatAnEarlierRunHadDone) {
  ProgressRate rate;
  rate.Add(kStart, 1'000'000);
  rate.Add(kStart + 2s, 1'000'010);

  EXPECT_DOUBLE_EQ(rate.per_second(), 5);
}

TEST(ProgressRate, FollowsAChangeOfSpeed) {
  ProgressRate rate;
  int64_t done = 0;
  for (int i = 0; i <= 60; ++i) rate.Add(kStart + i * 1s, done += 1000);
  for (int i = 61; i <= 90; ++i) rate.Add(kStart + i * 1s, done += 10);

  EXPECT_NEAR(rate.per_second(), 10, 1);
}

TEST(ProgressRate, MeasuresStepsThatTakeLongerThanItsWindow) {
  ProgressRate rate;
  for (int i = 0; i <= 5; ++i) rate.Add(kStart + i * 40s, i);

  EXPECT_NEAR(rate.per_second(), 1.0 / 40, 1e-9);
  EXPECT_NEAR(rate.SecondsLeft(7), 80, 1e-6);
}

TEST(ProgressRate, FallsWhileNothingIsDone) {
  ProgressRate rate;
  rate.Add(kStart, 0);
  rate.Add(kStart + 1s, 100);
  const double before = rate.per_second();
  rate.Add(kStart + 9s, 100);

  EXPECT_LT(rate.per_second(), before / 2);
}

TEST(ProgressRate, StartsAgainAfterARollback) {
  ProgressRate rate;
  rate.Add(kStart, 0);
  rate.Add(kStart + 1s, 100);
  rate.Add(kStart + 2s, 40);
  EXPECT_EQ(rate.per_second(), 0);

  rate.Add(kStart + 4s, 60);
  EXPECT_DOUBLE_EQ(rate.per_second(), 10);
}

}  // namespace
}  // namespace tandem::server
