// The router of a mixture of experts: which experts a row has, and with which weights.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/ops/experts.h"
#include "engine/ops/parallel.h"

namespace tandem::engine {
namespace {

// Whether expert (or group) a is chosen before a later b. NaN comes last.
bool IsBetter(float later, float best) {
  return later > best || (std::isnan(best) && !std::isnan(later));
}

// The best untaken entry, ties to the lowest index; takes it. REQUIRES: one is untaken.
int64_t TakeBest(std::span<const float> values, std::span<uint8_t> taken) {
  int64_t best = -1;
  for (size_t i = 0; i < values.size(); ++i) {
    if (taken[i] != 0) continue;
    if (best < 0 || IsBetter(values[i], values[static_cast<size_t>(best)])) {
      best = static_cast<int64_t>(i);
    }
  }
  taken[static_cast<size_t>(best)] = 1;
  return best;
}

void Softmax(std::span<float> values) {
  float max = -INFINITY;
  for (const float value : values) max = std::max(max, value);
  float sum = 0;
  for (float& value : values) sum += value = std::exp(value - max);
  for (float& value : values) value /= sum;
}

// One row's router. The spans are scratch of one worker.
struct RowRouter {
  const RouterSpec& spec;
  const float* bias;
  std::span<float> scores;    // [n_experts]
  std::span<float> choices;   // [n_experts]
  std::span<float> groups;    // [n_groups]
  std::span<uint8_t> taken;   // [n_experts]
  std::span<uint8_t> passed;  // [n_groups]

  static size_t Bytes(const RouterSpec& spec) {
    const auto experts = static_cast<size_t>(spec.n_experts);
    const auto groups = static_cast<size_t>(spec.n_groups);
    return (2 * experts + groups) * sizeof(float) + experts + groups;
  }

  static RowRouter At(std::byte* scratch, const RouterSpec& spec, const float* bias) {
    const auto experts = static_cast<size_t>(spec.n_experts);
    const auto groups = static_cast<size_t>(spec.n_groups);
    auto* floats = reinterpret_cast<float*>(scratch);
    auto* marks = reinterpret_cast<uint8_t*>(floats + 2 * experts + groups);
    return {spec,
            bias,
            {floats, experts},
            {floats + experts, experts},
            {floats + 2 * experts, groups},
            {marks, experts},
            {marks + experts, groups}};
  }

  void Run(const float* logits, float* routing) {
    Score(logits);
    std::fill(taken.begin(), taken.end(), uint8_t{0});
    if (spec.n_groups > 1) LeaveOutGroups();
    float* weights = routing + spec.top_k;
    for (int64_t slot = 0; slot < spec.top_k; ++slot) {
      const int64_t expert = TakeBest(choices, taken);
      routing[slot] = static_cast<float>(expert);
      weights[slot] = scores[static_cast<size_t>(expert)];
    }
    Weigh({weights, static_cast<size_t>(spec.top_k)});
  }

  void Score(const float* logits) {
    std::copy_n(logits, scores.size(), scores.begin());
    if (spec.score == RouterScore::kSigmoid) {
      for (float& score : scores) score = 1 / (1 + std::exp(-score));
    } else if (!spec.softmax_of_chosen) {
      Softmax(scores);
    }
    // Softmax keeps the order of logits, but rounds small scores together.
    const bool by_logit = spec.score == RouterScore::kSoftmax && bias == nullptr &&
                          spec.group_score == GroupScore::kMax;
    std::copy_n(by_logit ? logits : scores.data(), choices.size(), choices.begin());
    if (bias == nullptr) return;
    for (size_t i = 0; i < choices.size(); ++i) choices[i] += bias[i];
  }

  void LeaveOutGroups() {
    const size_t size = choices.size() / groups.size();
    for (size_t g = 0; g < groups.size(); ++g) groups[g] = GroupOf(choices.subspan(g * size, size));
    std::fill(passed.begin(), passed.end(), uint8_t{0});
    for (int64_t i = 0; i < spec.top_groups; ++i) TakeBest(groups, passed);
    for (size_t i = 0; i < taken.size(); ++i) taken[i] = passed[i / size] == 0 ? 1 : 0;
  }

  float GroupOf(std::span<const float> members) const {
    float best = -INFINITY, second = -INFINITY;
    for (const float value : members) {
      if (value > best) {
        second = best;
        best = value;
      } else if (value > second) {
        second = value;
      }
    }
    return spec.group_score == GroupScore::kMax ? best : best + second;
  }

  void Weigh(std::span<float> weights) const {
    if (spec.softmax_of_chosen) Softmax(weights);
    if (spec.normalise) {
      float sum = 0;
      for (const float weight : weights) sum += weight;
      for (float& weight : weights) weight /= sum + 1e-20f;
    }
    if (spec.scale != 1) {
      for (float& weight : weights) weight *= spec.scale;
    }
  }
};

void Refuse(bool wrong, const std::string& what) {
  if (wrong) throw Error(ErrorCode::kInvalidArgument, "router: " + what);
}

}  // namespace

void CheckRouter(const RouterSpec& spec) {
  const auto text = [](int64_t n) { return std::to_string(n); };
  Refuse(spec.n_experts < 1, "n_experts is " + text(spec.n_experts) + ", must be at least 1");
  Refuse(spec.top_k < 1 || spec.top_k > spec.n_experts,
         "top_k is " + text(spec.top_k) + ", must be from 1 to n_experts, " + text(spec.n_experts));
  Refuse(spec.n_groups < 1 || spec.n_experts % spec.n_groups != 0,
         "n_groups is " + text(spec.n_groups) + ", must divide n_experts, " + text(spec.n_experts));
  Refuse(spec.top_groups < 1 || spec.top_groups > spec.n_groups,
         "top_groups is " + text(spec.top_groups) + ", must be from 1 to n_groups, " +
             text(spec.n_groups));
  const int64_t group_size = spec.n_experts / spec.n_groups;
  Refuse(spec.top_k > spec.top_groups * group_size,
         "top_k is " + text(spec.top_k) + ", but " + text(spec.top_groups) + " groups have " +
             text(spec.top_groups * group_size) + " experts");
  Refuse(spec.n_groups > 1 && spec.group_score == GroupScore::kTop2Sum && group_size < 2,
         "n_groups is " + text(spec.n_groups) + ": a group needs two experts for its score");
  Refuse(spec.softmax_of_chosen && spec.score != RouterScore::kSoftmax,
         "softmax_of_chosen needs the softmax score");
}

void Route(OpsContext& ops, const float* logits, int64_t ldlogits, const float* selection_bias,
           const RouterSpec& spec, const Matrix& routing) {
  TANDEM_CHECK(routing.dtype == DType::kF32 && routing.cols == 2 * spec.top_k);
  ReserveWorkerScratch(ops, RowRouter::Bytes(spec));
  const auto route = [&](int64_t first, int64_t count, int worker) {
    RowRouter router = RowRouter::At(ops.WorkerScratch(worker, 0), spec, selection_bias);
    for (int64_t row = first; row < first + count; ++row) {
      router.Run(logits + row * ldlogits, static_cast<float*>(routing.data) + row * routing.stride);
    }
  };
  ParallelRows(ops, routing.rows, spec.n_experts * spec.top_k, route);
}

}  // namespace tandem::engine
