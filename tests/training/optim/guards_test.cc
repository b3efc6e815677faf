#include "training/optim/guards.h"

#include <gtest/gtest.h>

namespace tandem::training {
namespace {

// Alternates losses 2 and 4: mean 3, deviation sqrt(10 / 9).
void Fill(SpikeGuard& guard, int n) {
  for (int i = 0; i < n; ++i) EXPECT_FALSE(guard.IsSpike(i % 2 == 0 ? 2 : 4, 1)) << i;
}

TEST(SpikeGuard, ComparesWithMeanAndDeviationOfTheWindow) {
  const SpikeOptions options{.enabled = true, .window = 10, .factor = 3};
  const double limit = 3 + 3 * 1.0540925533894598;
  for (const double offset : {-1e-9, 1e-9}) {
    SpikeGuard guard(options);
    Fill(guard, 10);
    EXPECT_EQ(guard.IsSpike(limit + offset, 1), offset > 0);
  }
}

TEST(SpikeGuard, AGradientNormIsASpikeToo) {
  SpikeGuard guard({.enabled = true, .window = 10, .factor = 3});
  Fill(guard, 10);

  EXPECT_TRUE(guard.IsSpike(3, 1.5));
}

TEST(SpikeGuard, WaitsForHalfAWindow) {
  SpikeGuard early({.enabled = true, .window = 10, .factor = 3});
  Fill(early, 4);
  EXPECT_FALSE(early.IsSpike(100, 1));

  SpikeGuard later({.enabled = true, .window = 10, .factor = 3});
  Fill(later, 5);
  EXPECT_TRUE(later.IsSpike(100, 1));
}

TEST(SpikeGuard, WhatLastsIsNoSpikeForLong) {
  SpikeGuard guard({.enabled = true, .window = 10, .factor = 3});
  Fill(guard, 10);

  int spikes = 0;
  for (int i = 0; i < 10; ++i) spikes += guard.IsSpike(50, 1) ? 1 : 0;
  EXPECT_GE(spikes, 1);
  EXPECT_LE(spikes, 3);
}

TEST(SpikeGuard, OffItKeepsQuiet) {
  SpikeGuard guard({});
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(guard.IsSpike(i == 900 ? 1e6 : 1, 1));
  EXPECT_TRUE(guard.state().losses.empty());
}

TEST(SpikeGuard, GoesOnWhereItsStateWasTaken) {
  const SpikeOptions options{.enabled = true, .window = 10, .factor = 3};
  SpikeGuard whole(options);
  Fill(whole, 7);
  SpikeGuard resumed(options);
  resumed.Restore(whole.state());

  EXPECT_TRUE(resumed.IsSpike(100, 1));
  EXPECT_TRUE(whole.IsSpike(100, 1));
}

}  // namespace
}  // namespace tandem::training
