#include "training/ops/distillation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/base/check.h"
#include "engine/kernels/training_kernels.h"
#include "engine/ops/softmax.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::training {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

double LogSum(std::span<const double> logs) {
  const double most = *std::max_element(logs.begin(), logs.end());
  if (!(most > kNever)) return most;
  double sum = 0;
  for (const double log : logs) sum += std::exp(log - most);
  return most + std::log(sum);
}

// The logarithm of the probability that k events leave; rounding may leave less than nothing.
double LogOfOthers(std::span<const float> logprobs) {
  double sum = 0;
  for (const float logprob : logprobs) sum += std::exp(static_cast<double>(logprob));
  return sum < 1 ? std::log1p(-sum) : kNever;
}

void Store(const engine::Matrix& dz, int64_t row, int64_t column, double value) {
  const int64_t at = row * dz.stride + column;
  const auto rounded = static_cast<float>(value);
  if (dz.dtype == engine::DType::kBF16) {
    static_cast<engine::Bf16*>(dz.data)[at] = engine::FloatToBf16(rounded);
  } else {
    static_cast<float*>(dz.data)[at] = rounded;
  }
}

// dz = factor * exp(z - lse), by the kernel of cross-entropy. The element of `spare` is undefined.
void StoreExponentials(const engine::TrainingKernelTable& kernels, const float* logits,
                       int64_t vocab, float lse, float factor, float soft_cap, int64_t spare,
                       const engine::Matrix& dz, int64_t row) {
  if (dz.dtype == engine::DType::kBF16) {
    kernels.cross_entropy_gradient_bf16(
        {.logits = logits,
         .vocab = vocab,
         .lse = lse,
         .target = spare,
         .weight = 1,
         .soft_cap = soft_cap,
         .dz = static_cast<engine::Bf16*>(dz.data) + row * dz.stride,
         .likelihood_factor = factor});
  } else {
    kernels.cross_entropy_gradient_f32({.logits = logits,
                                        .vocab = vocab,
                                        .lse = lse,
                                        .target = spare,
                                        .weight = 1,
                                        .soft_cap = soft_cap,
                                        .dz = static_cast<float*>(dz.data) + row * dz.stride,
                                        .likelihood_factor = factor});
  }
}

}  // namespace

double TemperedDivergence(std::span<const float> teacher, std::span<const double> student,
                          double temperature, std::span<double> slopes) {
  const size_t n = student.size();
  TANDEM_CHECK((n == teacher.size() || n == teacher.size() + 1) && slopes.size() == n);
  std::vector<double> t(n);
  std::vector<double> s(n);
  for (size_t i = 0; i < n; ++i) {
    const double log = i < teacher.size() ? static_cast<double>(teacher[i]) : LogOfOthers(teacher);
    t[i] = log / temperature;
    s[i] = student[i] / temperature;
  }
  const double of_teacher = LogSum(t);
  const double of_student = LogSum(s);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    const double log_p = t[i] - of_teacher;
    const double log_q = s[i] - of_student;
    const double p = std::exp(log_p);
    if (p > 0) sum += p * (log_p - log_q);
    slopes[i] = temperature * (std::exp(log_q) - p);
  }
  return temperature * temperature * sum;
}

DistilledTile::DistilledTile(engine::OpsContext& ops, const Distillation& distillation,
                             std::span<const int64_t> row_of, float* logits, int64_t vocab,
                             const float* lse)
    : ops_(ops),
      distillation_(distillation),
      row_of_(row_of),
      logits_(logits),
      vocab_(vocab),
      lse_(lse),
      has_bucket_(distillation.k < vocab),
      divergences_(row_of.size()),
      slopes_(row_of.size() * static_cast<size_t>(n_events())) {
  TANDEM_CHECK(distillation.k > 0 && distillation.k <= vocab);
  if (has_bucket_) SumOthers();
  ops_.pool().ParallelFor(static_cast<int64_t>(row_of.size()),
                          [&](int64_t row, int) { Compare(row); });
}

std::span<const TokenId> DistilledTile::IdsOf(int64_t row) const {
  const auto k = static_cast<size_t>(distillation_.k);
  return distillation_.ids.subspan(static_cast<size_t>(row_of_[static_cast<size_t>(row)]) * k, k);
}

// A difference of 1 and the sum of the k probabilities would lose the digits of a small rest.
void DistilledTile::SumOthers() {
  const auto rows = static_cast<int64_t>(row_of_.size());
  std::vector<float> kept;
  for (int64_t row = 0; row < rows; ++row) {
    for (const TokenId id : IdsOf(row)) {
      TANDEM_CHECK(id >= 0 && id < vocab_);
      kept.push_back(
          std::exchange(logits_[row * vocab_ + id], -std::numeric_limits<float>::infinity()));
    }
  }
  lse_of_others_.resize(row_of_.size());
  engine::LogSumExp(ops_, logits_, rows, vocab_, vocab_, lse_of_others_.data());
  auto next = kept.begin();
  for (int64_t row = 0; row < rows; ++row) {
    for (const TokenId id : IdsOf(row)) logits_[row * vocab_ + id] = *next++;
  }
}

void DistilledTile::Compare(int64_t row) {
  const auto r = static_cast<size_t>(row);
  const auto k = static_cast<size_t>(distillation_.k);
  const auto n = static_cast<size_t>(n_events());
  const auto lse = static_cast<double>(lse_[r]);
  std::vector<double> student;
  for (const TokenId id : IdsOf(row)) {
    student.push_back(static_cast<double>(logits_[row * vocab_ + id]) - lse);
  }
  if (has_bucket_) student.push_back(static_cast<double>(lse_of_others_[r]) - lse);
  const auto teacher = distillation_.logprobs.subspan(static_cast<size_t>(row_of_[r]) * k, k);
  divergences_[r] = TemperedDivergence(teacher, student, distillation_.temperature,
                                       std::span(slopes_).subspan(r * n, n));
}

// The slopes by the k + 1 log-probabilities sum to 0. The derivative by a logit is therefore its
// event's slope, times the logit's share of the event. In the bucket the share is exp(z - lse of
// the others), and the softmax of cross-entropy is a multiple of it.
void DistilledTile::FormGradient(int64_t row, const GradientArgs& args,
                                 const engine::Matrix& dz) const {
  const auto r = static_cast<size_t>(row);
  const auto n = static_cast<size_t>(n_events());
  const auto slopes = std::span(slopes_).subspan(r * n, n);
  const float* z = logits_ + row * vocab_;
  const double alpha = distillation_.alpha;
  const auto lse = static_cast<double>(lse_[r]);
  const auto weight = static_cast<double>(args.weight);
  // Factor of the softmax in the gradients of cross-entropy and z loss.
  const double of_softmax = (1 - alpha) + 2 * static_cast<double>(args.z_loss) * lse;
  const auto cap_slope = [&](double value) {
    if (args.soft_cap <= 0) return 1.0;
    const double t = value / static_cast<double>(args.soft_cap);
    return 1 - t * t;
  };
  const std::span<const TokenId> ids = IdsOf(row);
  if (has_bucket_) {
    const auto others = static_cast<double>(lse_of_others_[r]);
    const double factor = of_softmax * std::exp(others - lse) + alpha * slopes.back();
    StoreExponentials(engine::TrainingKernels(ops_.kernels()), z, vocab_, lse_of_others_[r],
                      static_cast<float>(weight * factor), args.soft_cap, ids.front(), dz, row);
    const auto target = static_cast<double>(z[args.target]);
    Store(dz, row, args.target,
          weight * (factor * std::exp(target - others) - (1 - alpha)) * cap_slope(target));
  }
  if (!has_bucket_ && dz.dtype == engine::DType::kBF16 && vocab_ % 2 != 0) {
    Store(dz, row, vocab_, 0);  // the padding column
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto value = static_cast<double>(z[ids[i]]);
    const double is_target = ids[i] == args.target ? 1 - alpha : 0;
    Store(dz, row, ids[i],
          weight * (of_softmax * std::exp(value - lse) - is_target + alpha * slopes[i]) *
              cap_slope(value));
  }
}

}  // namespace tandem::training
