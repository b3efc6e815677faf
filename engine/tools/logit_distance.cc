#include "engine/tools/logit_distance.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/progress.h"
#include "engine/kv/block_pool.h"
#include "engine/kv/state_cache.h"
#include "engine/model/adapter.h"

namespace tandem::engine {
namespace {

constexpr int64_t kRows = 64;  // per step

// One step: tokens [at, at + n) of the window [begin, end).
struct Step {
  int64_t begin, end, at, n;
};

template <typename Visit>
void ForEachStep(int64_t n_tokens, int64_t window, const Visit& visit) {
  for (int64_t begin = 0; begin < n_tokens; begin += window) {
    const int64_t end = std::min(n_tokens, begin + window);
    for (int64_t at = begin; at < end; at += kRows) {
      visit(Step{begin, end, at, std::min(kRows, end - at)});
    }
  }
}

// Runs one model over one window at a time.
class Reader {
 public:
  Reader(const std::shared_ptr<const Model>& model, const Adapter* adapter, int64_t window,
         OpsContext& ops, KvFormat kv = KvFormat::kCompute)
      : adapter_(adapter),
        kv_(ModelRunner::KvShape(*model, (window + kTokensPerBlock - 1) / kTokensPerBlock, kv)),
        states_(ModelRunner::StateFloats(*model), 1),
        runner_(model, ops, kRows, kRows),
        blocks_(static_cast<size_t>((window + kTokensPerBlock - 1) / kTokensPerBlock)) {
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i] = {static_cast<uint32_t>(i)};
  }

  // Logits [step.n, vocab] of the step's tokens. REQUIRES: earlier steps of the window were read.
  std::span<const float> Read(std::span<const TokenId> tokens, const Step& step) {
    const auto n = static_cast<size_t>(step.n);
    positions_.resize(n);
    std::iota(positions_.begin(), positions_.end(), static_cast<int32_t>(step.at - step.begin));
    rows_.resize(n);
    std::iota(rows_.begin(), rows_.end(), 0);
    const AttentionSlice slice{.first_row = 0,
                               .n_rows = step.n,
                               .first_position = step.at - step.begin,
                               .blocks = blocks_};
    const SliceState state{.state = states_.At({})};
    return runner_.Forward({.tokens = tokens.subspan(static_cast<size_t>(step.at), n),
                            .positions = positions_,
                            .slices = std::span(&slice, 1),
                            .logit_rows = rows_,
                            .adapters = {&adapter_, 1},
                            .states = {&state, 1}},
                           kv_);
  }

 private:
  const Adapter* adapter_;
  KvCache kv_;
  StateCache states_;
  ModelRunner runner_;
  std::vector<BlockId> blocks_;
  std::vector<int32_t> positions_, rows_;
};

double LogSumExp(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  const double result = max + std::log(sum);
  if (!std::isfinite(result)) {
    throw Error(ErrorCode::kInvalidArgument,
                "the model produced logits that are not finite, so they cannot be compared");
  }
  return result;
}

int64_t ArgMax(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

// Accumulates the distance, position by position.
class DistanceSum {
 public:
  explicit DistanceSum(std::span<const TokenId> tokens) : tokens_(tokens) {}

  // Logits [step.n, vocab] of the reference and of the model.
  void Add(const Step& step, std::span<const float> theirs, std::span<const float> ours) {
    const size_t vocab = theirs.size() / static_cast<size_t>(step.n);
    for (int64_t row = 0; row < step.n; ++row) {
      const size_t offset = static_cast<size_t>(row) * vocab;
      const int64_t next = step.at + row + 1;
      AddRow(theirs.subspan(offset, vocab), ours.subspan(offset, vocab),
             next == step.end ? -1 : tokens_[static_cast<size_t>(next)]);
    }
  }

  LogitDistance Result() const {
    LogitDistance distance = distance_;
    const auto n = static_cast<double>(distance.n_positions);
    distance.mean_kl /= n;
    distance.same_first_choice = static_cast<double>(n_same_) / n;
    distance.reference_perplexity = std::exp(their_loss_ / static_cast<double>(n_predicted_));
    distance.perplexity = std::exp(our_loss_ / static_cast<double>(n_predicted_));
    return distance;
  }

 private:
  // `next`: the following token; negative: none.
  void AddRow(std::span<const float> p, std::span<const float> q, TokenId next) {
    const double p_norm = LogSumExp(p), q_norm = LogSumExp(q);
    double kl = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      const double log_p = p[i] - p_norm;
      kl += std::exp(log_p) * (log_p - (q[i] - q_norm));
    }
    distance_.mean_kl += kl;
    distance_.max_kl = std::max(distance_.max_kl, kl);
    distance_.max_abs_difference =
        std::max(distance_.max_abs_difference, LargestLogitDifference(p, q));
    n_same_ += ArgMax(p) == ArgMax(q) ? 1 : 0;
    ++distance_.n_positions;
    if (next < 0) return;
    their_loss_ += p_norm - p[static_cast<size_t>(next)];
    our_loss_ += q_norm - q[static_cast<size_t>(next)];
    ++n_predicted_;
  }

  std::span<const TokenId> tokens_;
  LogitDistance distance_;
  double their_loss_ = 0, our_loss_ = 0;
  int64_t n_predicted_ = 0, n_same_ = 0;
};

void Require(bool holds, const std::string& what) {
  if (!holds) throw Error(ErrorCode::kInvalidArgument, what);
}

void CheckFits(const Model& model, std::span<const TokenId> tokens, int64_t window) {
  Require(tokens.size() >= 2, "the text must have at least two tokens to compare predictions");
  Require(window >= 2, "the window must be at least two tokens");
  Require(window <= model.config().max_context_len,
          "the window of " + std::to_string(window) + " tokens exceeds the model's context of " +
              std::to_string(model.config().max_context_len));
  for (const TokenId token : tokens) {
    Require(token >= 0 && token < model.config().vocab_size,
            "token id " + std::to_string(token) + " is outside the vocabulary of " +
                std::to_string(model.config().vocab_size) + " tokens");
  }
}

void CheckSameVocabulary(int64_t reference, int64_t model) {
  Require(reference == model, "the vocabularies must have the same size, got " +
                                  std::to_string(reference) + " and " + std::to_string(model) +
                                  " tokens");
}

}  // namespace

std::vector<TokenId> SpreadTokens(int64_t vocab_size, int64_t count) {
  std::vector<TokenId> ids;
  uint64_t state = 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<TokenId>((state >> 33) % static_cast<uint64_t>(vocab_size)));
  }
  return ids;
}

double LargestLogitDifference(std::span<const float> a, std::span<const float> b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(double{a[i]} - double{b[i]});
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

LogitRecord RecordLogits(const std::shared_ptr<const Model>& model, const Adapter* adapter,
                         std::span<const TokenId> tokens, int64_t window, OpsContext& ops) {
  CheckFits(*model, tokens, window);
  LogitRecord record{
      {tokens.begin(), tokens.end()}, window, model->config().vocab_size, /*logits=*/{}};
  record.logits.reserve(tokens.size() * static_cast<size_t>(record.vocab_size));
  Reader reader(model, adapter, window, ops);
  ProgressTask task("running the reference", "tokens", static_cast<int64_t>(tokens.size()));
  ForEachStep(static_cast<int64_t>(tokens.size()), window, [&](const Step& step) {
    const std::span<const float> logits = reader.Read(tokens, step);
    task.Add(step.n);
    record.logits.insert(record.logits.end(), logits.begin(), logits.end());
  });
  return record;
}

LogitDistance MeasureLogitDistance(const LogitRecord& reference,
                                   const std::shared_ptr<const Model>& model, OpsContext& ops,
                                   const Adapter* adapter) {
  CheckSameVocabulary(reference.vocab_size, model->config().vocab_size);
  CheckFits(*model, reference.tokens, reference.window);
  const auto vocab = static_cast<size_t>(reference.vocab_size);
  Reader reader(model, adapter, reference.window, ops);
  DistanceSum sum(reference.tokens);
  ProgressTask task("comparing outputs", "tokens", static_cast<int64_t>(reference.tokens.size()));
  ForEachStep(
      static_cast<int64_t>(reference.tokens.size()), reference.window, [&](const Step& step) {
        sum.Add(
            step,
            std::span(reference.logits)
                .subspan(static_cast<size_t>(step.at) * vocab, static_cast<size_t>(step.n) * vocab),
            reader.Read(reference.tokens, step));
        task.Add(step.n);
      });
  return sum.Result();
}

LogitDistance MeasureLogitDistance(const std::shared_ptr<const Model>& reference,
                                   const std::shared_ptr<const Model>& model,
                                   std::span<const TokenId> tokens, int64_t window, OpsContext& ops,
                                   KvFormat kv) {
  CheckSameVocabulary(reference->config().vocab_size, model->config().vocab_size);
  CheckFits(*reference, tokens, window);
  CheckFits(*model, tokens, window);
  Reader theirs(reference, nullptr, window, ops), ours(model, nullptr, window, ops, kv);
  DistanceSum sum(tokens);
  ProgressTask task("comparing outputs", "tokens", static_cast<int64_t>(tokens.size()));
  ForEachStep(static_cast<int64_t>(tokens.size()), window, [&](const Step& step) {
    sum.Add(step, theirs.Read(tokens, step), ours.Read(tokens, step));
    task.Add(step.n);
  });
  return sum.Result();
}

}  // namespace tandem::engine
