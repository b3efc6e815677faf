#include "engine/speculation/guess_length.h"

#include <gtest/gtest.h>

namespace tandem::engine {
namespace {

// A step costs `step` and `row` more for each row after the first.
StepTimes Times(double step, double row) {
  StepTimes times;
  for (int64_t r = 1; r <= StepTimes::kMostRows; ++r) {
    times.Observe(r, step + row * static_cast<double>(r - 1));
  }
  return times;
}

TEST(StepTimes, KnowsWhatWasMeasuredAndTakesTheNearestFewerRowsElsewhere) {
  StepTimes times;
  EXPECT_EQ(times.At(4), 0);
  times.Observe(2, 1.0);
  EXPECT_EQ(times.At(1), 0);
  EXPECT_EQ(times.At(2), 1.0);
  EXPECT_EQ(times.At(9), 1.0);
  times.Observe(2, 2.0);
  EXPECT_GT(times.At(2), 1.0);
  EXPECT_LT(times.At(2), 2.0);
  times.Observe(0, 5.0);
  times.Observe(StepTimes::kMostRows + 1, 5.0);
  EXPECT_LT(times.At(1000), 2.0);
}

TEST(GuessLength, BeginsShortWhileNoTimeIsKnown) {
  GuessLength length;
  EXPECT_EQ(length.Next(15, 1, {}, {}), GuessLength::kFirst);
  EXPECT_EQ(length.Next(2, 1, {}, {}), 2);
}

TEST(GuessLength, GuessesLongWhereTheDraftIsCheapAndRight) {
  GuessLength length;
  for (int i = 0; i < 40; ++i) length.Observe(8, 8);
  EXPECT_EQ(length.Next(15, 1, Times(1, 0.01), Times(0.01, 0)), 15);
}

TEST(GuessLength, GuessesShorterWhenFewAreAccepted) {
  GuessLength good, bad;
  for (int i = 0; i < 60; ++i) {
    good.Observe(4, i % 8 == 0 ? 3 : 4);
    bad.Observe(4, i % 2);
  }
  const StepTimes target = Times(1, 0.02);
  const StepTimes draft = Times(0.05, 0);
  EXPECT_GT(good.rate(), bad.rate());
  EXPECT_GT(good.Next(15, 1, target, draft), bad.Next(15, 1, target, draft));
}

TEST(GuessLength, GuessesNothingWhereRowsCostAsMuchAsSteps) {
  GuessLength length;
  for (int i = 0; i < 20; ++i) length.Observe(4, 2);
  const StepTimes target = Times(1, 1);  // bound by arithmetic
  const StepTimes draft = Times(0.1, 0.1);
  int64_t guesses = 0;
  for (int64_t i = 0; i < 3 * GuessLength::kProbeEvery; ++i) {
    guesses += length.Next(15, 4, target, draft);
  }
  EXPECT_EQ(guesses, 3);  // to notice a change
}

TEST(GuessLength, GuessesAfterTheFirstWrongOneSayNothing) {
  AcceptanceRate one, many;
  one.Observe(1, 0);
  many.Observe(15, 0);
  EXPECT_EQ(one.rate(), many.rate());
}

}  // namespace
}  // namespace tandem::engine
