#include "engine/loop/event_rate.h"

#include <gtest/gtest.h>

namespace tandem::engine {
namespace {

using namespace std::chrono_literals;

EventRate::TimePoint At(std::chrono::milliseconds time) {
  return EventRate::TimePoint(100s + time);
}

TEST(EventRate, SteadyEventsAreCountedAsTheyCome) {
  EventRate rate;
  for (int i = 0; i < 200; ++i) rate.Add(At(i * 100ms));
  EXPECT_NEAR(rate.PerSecond(At(19'900ms)), 10, 0.01);
}

TEST(EventRate, AYoungRateIsNotThinnedByTimeBeforeIt) {
  EventRate rate;
  EXPECT_EQ(rate.PerSecond(At(5s)), 0);
  for (int i = 0; i < 20; ++i) rate.Add(At(5s + i * 100ms));
  EXPECT_NEAR(rate.PerSecond(At(6'900ms)), 10, 0.01);
}

TEST(EventRate, OldEventsAreForgotten) {
  EventRate rate;
  for (int i = 0; i < 1000; ++i) rate.Add(At(0ms));
  EXPECT_GT(rate.PerSecond(At(3s)), 0);
  EXPECT_EQ(rate.PerSecond(At(11s)), 0);
  rate.Add(At(3600s));
  EXPECT_EQ(rate.PerSecond(At(3600s)), 1);
}

}  // namespace
}  // namespace tandem::engine
