#include "training/optim/schedule.h"

#include <cmath>
#include <numbers>

namespace tandem::training {
namespace {

int64_t StepsOf(int64_t steps, double fraction, int64_t given) {
  return given >= 0 ? given
                    : static_cast<int64_t>(std::floor(static_cast<double>(steps) * fraction));
}

// From 1 at step 0 to `final_fraction` at step n - 1.
double Decay(DecayStyle style, int64_t step, int64_t n, double final_fraction) {
  const double progress = n <= 1 ? 1.0 : static_cast<double>(step) / static_cast<double>(n - 1);
  const double share = style == DecayStyle::kCosine
                           ? 0.5 * (std::cos(std::numbers::pi * progress) + 1.0)
                           : 1.0 - progress;
  return share + final_fraction * (1.0 - share);
}

}  // namespace

int64_t WarmupSteps(const ScheduleSpec& spec) {
  return StepsOf(spec.schedule_steps, spec.warmup_fraction, spec.warmup_steps);
}

int64_t DecaySteps(const ScheduleSpec& spec) {
  return StepsOf(spec.schedule_steps, spec.decay_fraction, spec.decay_steps);
}

double LearningRate(const ScheduleSpec& spec, int64_t t) {
  if (spec.kind == ScheduleKind::kConstant) return spec.learning_rate;
  const int64_t steps = spec.schedule_steps;
  if (t >= steps) return 0;
  const int64_t warmup = WarmupSteps(spec);
  if (t < warmup) {
    return spec.learning_rate * static_cast<double>(t) / static_cast<double>(warmup);
  }
  if (spec.kind == ScheduleKind::kWsd) {
    const int64_t decay = DecaySteps(spec);
    const int64_t begin = steps - decay;
    if (t < begin) return spec.learning_rate;
    return spec.learning_rate * Decay(spec.decay_style, t - begin, decay, spec.final_fraction);
  }
  const DecayStyle style =
      spec.kind == ScheduleKind::kCosine ? DecayStyle::kCosine : DecayStyle::kLinear;
  return spec.learning_rate * Decay(style, t - warmup, steps - warmup, spec.final_fraction);
}

}  // namespace tandem::training
