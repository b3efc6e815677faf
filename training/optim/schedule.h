#pragma once

#include <cstdint>

namespace tandem::training {

enum class ScheduleKind {
  kCosine,    // warm-up, then a half cosine to the final fraction
  kLinear,    // warm-up, then a line to the final fraction
  kWsd,       // warm-up, stable, then a decay to it over the last steps
  kConstant,  // no warm-up, no decay, no end
};

enum class DecayStyle { kLinear, kCosine };  // of kWsd

// MaxText's schedules: a warm-up from 0 (step 0 has rate 0), the shape of the kind, then 0 from
// schedule_steps on. kConstant has one rate throughout.
struct ScheduleSpec {
  double learning_rate = 3e-4;  // the maximum
  ScheduleKind kind = ScheduleKind::kCosine;
  int64_t schedule_steps = 0;
  double warmup_fraction = 0.1;  // of schedule_steps, rounded down
  int64_t warmup_steps = -1;     // >= 0: replaces warmup_fraction
  double final_fraction = 0.1;   // of learning_rate
  double decay_fraction = 0.1;   // for kWsd: of schedule_steps, rounded down
  int64_t decay_steps = -1;      // >= 0: replaces decay_fraction
  DecayStyle decay_style = DecayStyle::kLinear;
};

int64_t WarmupSteps(const ScheduleSpec& spec);
int64_t DecaySteps(const ScheduleSpec& spec);  // for kWsd

// t counts optimiser steps from 0.
double LearningRate(const ScheduleSpec& spec, int64_t t);

}  // namespace tandem::training
