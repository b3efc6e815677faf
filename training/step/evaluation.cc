// The losses of batches that no step trains on. Ranks share the batches.
#include <algorithm>

#include "engine/base/progress.h"
#include "training/step/library_loss.h"
#include "training/step/row_ranks.h"
#include "training/step/trainer.h"

namespace tandem::training {
namespace {

// Calls `compute` for batches 0 … n - 1, each on one rank. Returns `width` numbers per batch. With
// `together` all ranks call it equally often, for the last batch again where none is left.
template <class Compute>
std::vector<double> ShareBatches(Collectives* ranks, bool together, size_t n, size_t width,
                                 const Compute& compute) {
  const size_t size = ranks == nullptr ? 1 : static_cast<size_t>(ranks->size_of(kRowRanks));
  const size_t rank = ranks == nullptr ? 0 : static_cast<size_t>(ranks->rank_in(kRowRanks));
  const size_t each = (n + size - 1) / size;
  ProgressTask task("evaluating", "batches", static_cast<int64_t>(n));
  std::vector<double> mine(each * width, 0.0);
  for (size_t i = rank; i < n; i += size) {
    compute(i, std::span(mine).subspan(i / size * width, width));
    task.Reach(static_cast<int64_t>(std::min(n, i + size)));
  }
  if (together && n > 0 && rank + (each - 1) * size >= n) {
    std::vector<double> unused(width);
    compute(n - 1, std::span(unused));
  }
  const std::vector<double> all = FromAll(ranks, std::move(mine));
  std::vector<double> in_order(n * width);
  for (size_t i = 0; i < n; ++i) {
    const size_t from = (i % size * each + i / size) * width;
    std::copy_n(all.begin() + static_cast<int64_t>(from), width,
                in_order.begin() + static_cast<int64_t>(i * width));
  }
  return in_order;
}

// `all` has three numbers for each batch: its loss, weight, and weight of right tokens.
EvaluationResult MeanOf(const std::vector<double>& all) {
  EvaluationResult result;
  for (size_t i = 0; i < all.size(); i += 3) {
    result.weighted_loss += all[i];
    result.total_weights += all[i + 1];
    result.accuracy += all[i + 2];
  }
  if (result.total_weights > 0) {
    result.loss = result.weighted_loss / result.total_weights;
    result.accuracy /= result.total_weights;
  }
  return result;
}

}  // namespace

EvaluationResult Trainer::EvaluateLoss(std::span<const MicroBatch> batches) {
  const std::vector<double> all =
      ShareBatches(options_.ranks, sharded_ != nullptr, batches.size(), 3,
                   [&](size_t b, std::span<double> numbers) {
                     std::vector<float> token_logprobs(batches[b].tokens.size(), 0.0f);
                     const CrossEntropyResult one =
                         executor_->Evaluate(batches[b].View(0), token_logprobs.data());
                     numbers[0] = ApplyLoss(*options_.loss, batches[b], token_logprobs, {});
                     numbers[1] = one.weight;
                     numbers[2] = one.correct_weight;
                   });
  EvaluationResult result = MeanOf(all);
  result.is_library_loss = true;
  return result;
}

EvaluationResult Trainer::EvaluateDistilled(std::span<const MicroBatch> batches) {
  constexpr size_t kWidth = 4;
  const std::vector<double> all =
      ShareBatches(options_.ranks, sharded_ != nullptr, batches.size(), kWidth,
                   [&](size_t b, std::span<double> numbers) {
                     const Distillation distillation = batches[b].ViewTeacher(*options_.distill);
                     ProgramBatch view = batches[b].View(0);
                     view.distillation = &distillation;
                     const CrossEntropyResult one = executor_->Evaluate(view, nullptr);
                     numbers[0] = one.weighted_loss;
                     numbers[1] = one.weight;
                     numbers[2] = one.correct_weight;
                     numbers[3] = one.weighted_divergence;
                   });
  std::vector<double> of_tokens;
  double divergence = 0;
  for (size_t i = 0; i < all.size(); i += kWidth) {
    of_tokens.insert(of_tokens.end(), all.begin() + static_cast<int64_t>(i),
                     all.begin() + static_cast<int64_t>(i + 3));
    divergence += all[i + 3];
  }
  EvaluationResult result = MeanOf(of_tokens);
  result.distill = DistillFigures{divergence / std::max(result.total_weights, 1.0), result.loss};
  result.loss = result.distill->Loss(*options_.distill);
  return result;
}

EvaluationResult Trainer::Evaluate(std::span<const MicroBatch> batches) {
  if (options_.loss) return EvaluateLoss(batches);
  if (options_.distill) return EvaluateDistilled(batches);
  if (!options_.dpo) return EvaluateBatches(*executor_, batches, options_.ranks);
  constexpr size_t kWidth = PreferenceFigures::kNumbers + 1;
  const std::vector<double> all = ShareBatches(
      options_.ranks, sharded_ != nullptr, batches.size(), kWidth,
      [&](size_t b, std::span<double> numbers) {
        const std::vector<PairLogProbs> policy = LogProbsOfPairs(*executor_, batches[b]);
        PreferenceFigures figures;
        for (size_t i = 0; i < policy.size(); ++i) {
          figures.Add(*options_.dpo, policy[i], batches[b].pairs[i].reference,
                      TokensOf(batches[b].pairs[i], batches[b].targets));
        }
        const auto of_pairs = figures.Numbers();
        std::copy(of_pairs.begin(), of_pairs.end(), numbers.begin());
        numbers[PreferenceFigures::kNumbers] = batches[b].weight();
      });
  EvaluationResult result;
  PreferenceFigures figures;
  for (size_t i = 0; i < all.size(); i += kWidth) {
    figures.AddNumbers(std::span(all).subspan(i, PreferenceFigures::kNumbers));
    result.total_weights += all[i + PreferenceFigures::kNumbers];
  }
  result.weighted_loss = figures.loss;
  result.preference = figures.Mean();
  result.loss = result.preference->loss;
  result.accuracy = result.preference->accuracy;
  return result;
}

std::vector<PairLogProbs> LogProbsOfPairs(Executor& executor, const MicroBatch& batch) {
  std::vector<float> token_logprobs(batch.tokens.size(), 0.0f);
  executor.Evaluate(batch.View(0), token_logprobs.data());
  std::vector<PairLogProbs> logprobs;
  for (const PairRows& pair : batch.pairs) {
    logprobs.push_back(LogProbsOf(pair, batch.targets, token_logprobs));
  }
  return logprobs;
}

EvaluationResult EvaluateBatches(Executor& executor, std::span<const MicroBatch> batches,
                                 Collectives* ranks) {
  const std::vector<double> all = ShareBatches(
      ranks, executor.is_observed(), batches.size(), 3, [&](size_t b, std::span<double> numbers) {
        const CrossEntropyResult one = executor.Evaluate(batches[b].View(0), nullptr);
        numbers[0] = one.weighted_loss;
        numbers[1] = one.weight;
        numbers[2] = one.correct_weight;
      });
  return MeanOf(all);
}

}  // namespace tandem::training
