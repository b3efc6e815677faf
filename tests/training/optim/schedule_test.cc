#include "training/optim/schedule.h"

#include <gtest/gtest.h>

namespace tandem::training {
namespace {

// MaxText's table: learning rate 2e-5, 1000 steps, default fractions.
ScheduleSpec Table(ScheduleKind kind) {
  return {.learning_rate = 2e-5, .kind = kind, .schedule_steps = 1000};
}

TEST(LearningRate, FollowsMaxTextsCosine) {
  const ScheduleSpec spec = Table(ScheduleKind::kCosine);

  EXPECT_EQ(LearningRate(spec, 0), 0);
  EXPECT_NEAR(LearningRate(spec, 1), 2e-7, 1e-15);
  EXPECT_NEAR(LearningRate(spec, 50), 1e-5, 1e-13);
  EXPECT_NEAR(LearningRate(spec, 99), 1.98e-5, 1e-13);
  EXPECT_NEAR(LearningRate(spec, 100), 2e-5, 1e-13);
  EXPECT_NEAR(LearningRate(spec, 550), 1.09842746e-5, 1e-13);
  EXPECT_NEAR(LearningRate(spec, 999), 2e-6, 1e-14);
  EXPECT_EQ(LearningRate(spec, 1000), 0);
}

TEST(LearningRate, OfALineFallsEvenlyAfterTheWarmup) {
  const ScheduleSpec spec = Table(ScheduleKind::kLinear);

  EXPECT_NEAR(LearningRate(spec, 50), 1e-5, 1e-13);
  EXPECT_NEAR(LearningRate(spec, 100), 2e-5, 1e-13);
  EXPECT_NEAR(LearningRate(spec, 400), 2e-5 * (1 - 0.9 * 300 / 899), 1e-13);
  EXPECT_NEAR(LearningRate(spec, 999), 2e-6, 1e-14);
  EXPECT_EQ(LearningRate(spec, 1000), 0);
}

TEST(LearningRate, OfWarmupStableDecayStaysUntilTheLastSteps) {
  for (const DecayStyle style : {DecayStyle::kLinear, DecayStyle::kCosine}) {
    ScheduleSpec spec = Table(ScheduleKind::kWsd);
    spec.decay_style = style;

    EXPECT_NEAR(LearningRate(spec, 99), 1.98e-5, 1e-13);
    EXPECT_EQ(LearningRate(spec, 100), 2e-5);
    EXPECT_EQ(LearningRate(spec, 899), 2e-5);
    EXPECT_EQ(LearningRate(spec, 900), 2e-5);  // the first step of the decay
    EXPECT_LT(LearningRate(spec, 901), 2e-5);
    EXPECT_NEAR(LearningRate(spec, 999), 2e-6, 1e-14);
    EXPECT_EQ(LearningRate(spec, 1000), 0);
  }
  ScheduleSpec line = Table(ScheduleKind::kWsd);
  EXPECT_NEAR(LearningRate(line, 933), 2e-5 * (1 - 0.9 * 33 / 99), 1e-13);
  line.decay_style = DecayStyle::kCosine;
  EXPECT_NEAR(LearningRate(line, 933), 2e-5 * (0.75 + 0.1 * 0.25), 1e-13);
}

TEST(LearningRate, StepsCanBeGivenInPlaceOfFractions) {
  ScheduleSpec spec = Table(ScheduleKind::kWsd);
  spec.warmup_steps = 10;
  spec.decay_steps = 1;

  EXPECT_NEAR(LearningRate(spec, 5), 1e-5, 1e-13);
  EXPECT_EQ(LearningRate(spec, 10), 2e-5);
  EXPECT_EQ(LearningRate(spec, 998), 2e-5);
  EXPECT_NEAR(LearningRate(spec, 999), 2e-6, 1e-14);
  spec.warmup_steps = 0;
  EXPECT_EQ(LearningRate(spec, 0), 2e-5);
}

TEST(LearningRate, AConstantOneHasNeitherWarmupNorEnd) {
  const ScheduleSpec spec = Table(ScheduleKind::kConstant);

  for (const int64_t t : {0, 50, 999, 1000, 5000}) EXPECT_EQ(LearningRate(spec, t), 2e-5);
}

}  // namespace
}  // namespace tandem::training
