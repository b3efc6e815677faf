#include "training/optim/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <vector>

#include "engine/base/check.h"
#include "engine/kernels/training_kernels.h"

namespace tandem::training {
namespace {

using engine::OpsContext;

constexpr int64_t kNormBlock = 4096;
constexpr int64_t kElementsPerTask = 1 << 16;

}  // namespace

double LearningRate(const ScheduleSpec& spec, int64_t t) {
  if (spec.constant) return spec.learning_rate;
  const int64_t steps = spec.schedule_steps;
  if (t >= steps) return 0;
  const auto warmup =
      static_cast<int64_t>(std::floor(static_cast<double>(steps) * spec.warmup_fraction));
  if (t < warmup) {
    return spec.learning_rate * static_cast<double>(t) / static_cast<double>(warmup);
  }
  const int64_t cosine_steps = steps - warmup;
  const double progress =
      cosine_steps <= 1 ? 1.0
                        : static_cast<double>(t - warmup) / static_cast<double>(cosine_steps - 1);
  const double cosine = 0.5 * (std::cos(std::numbers::pi * progress) + 1.0);
  return spec.learning_rate * (cosine + spec.final_fraction * (1.0 - cosine));
}

void SplitMaster(float value, engine::Bf16* high, int16_t* low) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x8000u) >> 16;
  *high = static_cast<engine::Bf16>(rounded);
  *low = static_cast<int16_t>(bits - (rounded << 16));
}

float JoinMaster(engine::Bf16 high, int16_t low) {
  return std::bit_cast<float>((static_cast<uint32_t>(high) << 16) +
                              static_cast<uint32_t>(static_cast<int32_t>(low)));
}

double GlobalNorm(OpsContext& ops, std::span<const ParameterState> parameters) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  double total = 0;
  std::vector<double> blocks;
  for (const ParameterState& parameter : parameters) {
    const int64_t n_blocks = (parameter.elements + kNormBlock - 1) / kNormBlock;
    blocks.assign(static_cast<size_t>(n_blocks), 0);
    ops.pool().ParallelFor(n_blocks, [&](int64_t block, int) {
      const int64_t first = block * kNormBlock;
      blocks[static_cast<size_t>(block)] = kernels.sum_of_squares(
          parameter.gradient + first, std::min(kNormBlock, parameter.elements - first));
    });
    for (const double sum : blocks) total += sum;
  }
  return std::sqrt(total);
}

void ApplyOptimizer(OpsContext& ops, const OptimizerSpec& spec, double learning_rate, int64_t t,
                    double gradient_scale, std::span<const ParameterState> parameters) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  const double k = static_cast<double>(t + 1);
  engine::AdamArgs shared{};
  shared.gradient_scale = static_cast<float>(gradient_scale);
  shared.b1 = static_cast<float>(spec.b1);
  shared.b2 = static_cast<float>(spec.b2);
  shared.m_correction = static_cast<float>(1.0 / (1.0 - std::pow(spec.b1, k)));
  shared.v_correction = static_cast<float>(1.0 / (1.0 - std::pow(spec.b2, k)));
  shared.eps = static_cast<float>(spec.eps);
  shared.eps_root = static_cast<float>(spec.eps_root);
  shared.learning_rate = static_cast<float>(learning_rate);
  for (const ParameterState& parameter : parameters) {
    TANDEM_CHECK((parameter.master != nullptr) != (parameter.high != nullptr));
    const bool decays = spec.kind == OptimizerKind::kAdamW && parameter.decays;
    const int64_t n_tasks = (parameter.elements + kElementsPerTask - 1) / kElementsPerTask;
    ops.pool().ParallelFor(n_tasks, [&](int64_t task, int) {
      const int64_t first = task * kElementsPerTask;
      engine::AdamArgs args = shared;
      args.elements = std::min(kElementsPerTask, parameter.elements - first);
      if (parameter.master != nullptr) {
        args.master = parameter.master + first;
      } else {
        args.high = parameter.high + first;
        args.low = parameter.low + first;
      }
      args.m = parameter.m + first;
      args.v = parameter.v + first;
      args.gradient = parameter.gradient + first;
      args.decay = decays ? static_cast<float>(spec.weight_decay) : 0.0f;
      kernels.adam(args);
    });
  }
}

}  // namespace tandem::training
