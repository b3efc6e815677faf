#include <algorithm>

#include "training/optim/master_values.h"
#include "training/optim/update_rules.h"

namespace tandem::training {
namespace {

constexpr int64_t kLionElements = 1 << 16;  // per task

float SignOf(float x) { return static_cast<float>(x > 0) - static_cast<float>(x < 0); }

}  // namespace

void UpdateByLion(engine::OpsContext& ops, const UpdateStep& step,
                  const ParameterState& parameter) {
  const OptimizerSpec& spec = *step.spec;
  const auto b1 = static_cast<float>(spec.b1);
  const auto b2 = static_cast<float>(spec.b2);
  const auto rate = static_cast<float>(step.learning_rate);
  const auto scale = static_cast<float>(step.gradient_scale);
  const float decay = parameter.decays ? static_cast<float>(spec.weight_decay) : 0;
  const int64_t n_tasks = (parameter.elements + kLionElements - 1) / kLionElements;
  ops.pool().ParallelFor(n_tasks, [&](int64_t task, int) {
    const int64_t first = task * kLionElements;
    const int64_t end = std::min(first + kLionElements, parameter.elements);
    for (int64_t i = first; i < end; ++i) {
      const float g = parameter.gradient[i] * scale;
      const float m = parameter.m[i];
      const float w = MasterAt(parameter, i);
      SetMasterAt(parameter, i, w - rate * (SignOf(b1 * m + (1 - b1) * g) + decay * w));
      parameter.m[i] = b2 * m + (1 - b2) * g;
    }
  });
}

}  // namespace tandem::training
