#include "training/optim/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "engine/base/check.h"
#include "engine/kernels/training_kernels.h"
#include "engine/tensor/split_master.h"
#include "training/optim/update_rules.h"

namespace tandem::training {
namespace {

using engine::OpsContext;

constexpr int64_t kElementsPerTask = 1 << 16;
static_assert(kElementsPerTask % engine::kMomentBlock == 0);

template <class T>
T* From(T* begin, int64_t first) {
  return begin == nullptr ? nullptr : begin + first;
}

// Sets the element range of one task, beginning at `first`.
void SetRange(const ParameterState& parameter, int64_t first, engine::UpdateArgs* args) {
  const int64_t block = first / engine::kMomentBlock;
  args->elements = std::min(kElementsPerTask, parameter.elements - first);
  args->master = From(parameter.master, first);
  args->high = From(parameter.high, first);
  args->low = From(parameter.low, first);
  args->m = From(parameter.m, first);
  args->v = From(parameter.v, first);
  args->m_codes = From(parameter.m_codes, first);
  args->v_codes = From(parameter.v_codes, first);
  args->m_scales = From(parameter.m_scales, block);
  args->v_scales = From(parameter.v_scales, block);
  args->gradient = parameter.gradient + first;
}

}  // namespace

void SplitMaster(float value, engine::Bf16* high, int16_t* low) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x8000u) >> 16;
  *high = static_cast<engine::Bf16>(rounded);
  *low = static_cast<int16_t>(bits - (rounded << 16));
}

float JoinMaster(engine::Bf16 high, int16_t low) { return engine::JoinSplitMaster(high, low); }

std::vector<double> SquaredBlocks(OpsContext& ops, std::span<const ParameterState> parameters) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  std::vector<double> blocks;
  for (const ParameterState& parameter : parameters) {
    const int64_t n_blocks = (parameter.elements + kNormBlock - 1) / kNormBlock;
    const auto begin = static_cast<int64_t>(blocks.size());
    blocks.resize(static_cast<size_t>(begin + n_blocks));
    ops.pool().ParallelFor(n_blocks, [&](int64_t block, int) {
      const int64_t first = block * kNormBlock;
      blocks[static_cast<size_t>(begin + block)] = kernels.sum_of_squares(
          parameter.gradient + first, std::min(kNormBlock, parameter.elements - first));
    });
  }
  return blocks;
}

double GlobalNorm(OpsContext& ops, std::span<const ParameterState> parameters) {
  double total = 0;
  for (const double sum : SquaredBlocks(ops, parameters)) total += sum;
  return std::sqrt(total);
}

bool IsOrthogonalised(const OptimizerSpec& spec, const TensorForm& form) {
  return spec.kind == OptimizerKind::kMuon && form.is_matrix && form.is_of_layer && form.rows > 1 &&
         form.columns > 1;
}

MomentLayout MomentsOf(const OptimizerSpec& spec, const TensorForm& form) {
  MomentLayout layout;
  layout.first =
      spec.kind == OptimizerKind::kSgd ? spec.momentum > 0 : spec.kind != OptimizerKind::kAdafactor;
  layout.second = spec.kind != OptimizerKind::kSgd && spec.kind != OptimizerKind::kLion &&
                  !IsOrthogonalised(spec, form);
  if (spec.kind == OptimizerKind::kAdafactor && form.rows > 1 && form.columns > 1) {
    layout.factors = form.rows + form.columns;
  }
  layout.coded = spec.state == MomentState::k8Bit && layout.first && form.is_matrix &&
                 form.rows * form.columns >= kLeastCoded;
  return layout;
}

int64_t SecondMomentElements(const MomentLayout& layout, int64_t elements) {
  return layout.factors > 0 ? layout.factors : elements;
}

int64_t MomentBlocks(int64_t elements) {
  return (elements + engine::kMomentBlock - 1) / engine::kMomentBlock;
}

int64_t MomentBytes(const MomentLayout& layout, int64_t elements) {
  if (layout.factors > 0) return layout.factors * static_cast<int64_t>(sizeof(float));
  const int64_t each = layout.coded
                           ? elements + MomentBlocks(elements) * static_cast<int64_t>(sizeof(float))
                           : elements * static_cast<int64_t>(sizeof(float));
  return each * (static_cast<int64_t>(layout.first) + static_cast<int64_t>(layout.second));
}

void ApplyOptimizer(OpsContext& ops, const OptimizerSpec& spec, double learning_rate, int64_t t,
                    double gradient_scale, std::span<const ParameterState> parameters) {
  const UpdateStep step{&spec, learning_rate, t, gradient_scale};
  if (spec.kind == OptimizerKind::kAdafactor || spec.kind == OptimizerKind::kLion) {
    const auto rule = spec.kind == OptimizerKind::kLion ? UpdateByLion : UpdateByAdafactor;
    for (const ParameterState& parameter : parameters) rule(ops, step, parameter);
    return;
  }
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  const bool sgd = spec.kind == OptimizerKind::kSgd;
  const auto update = sgd ? kernels.sgd : kernels.adam;
  const double k = static_cast<double>(t + 1);
  engine::UpdateArgs shared{};
  shared.gradient_scale = static_cast<float>(gradient_scale);
  shared.b1 = static_cast<float>(sgd ? spec.momentum : spec.b1);
  shared.b2 = static_cast<float>(spec.b2);
  shared.m_correction = static_cast<float>(1.0 / (1.0 - std::pow(spec.b1, k)));
  shared.v_correction = static_cast<float>(1.0 / (1.0 - std::pow(spec.b2, k)));
  shared.eps = static_cast<float>(spec.eps);
  shared.eps_root = static_cast<float>(spec.eps_root);
  shared.learning_rate = static_cast<float>(learning_rate);
  for (const ParameterState& parameter : parameters) {
    TANDEM_CHECK((parameter.master != nullptr) != (parameter.high != nullptr));
    if (parameter.orthogonalised) {
      UpdateByMuon(ops, step, parameter);
      continue;
    }
    const bool decays = parameter.decays &&
                        (spec.kind == OptimizerKind::kAdamW || spec.kind == OptimizerKind::kMuon);
    const int64_t n_tasks = (parameter.elements + kElementsPerTask - 1) / kElementsPerTask;
    ops.pool().ParallelFor(n_tasks, [&](int64_t task, int) {
      engine::UpdateArgs args = shared;
      args.decay = decays ? static_cast<float>(spec.weight_decay) : 0.0f;
      SetRange(parameter, task * kElementsPerTask, &args);
      update(args);
    });
  }
}

}  // namespace tandem::training
