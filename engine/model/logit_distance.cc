#include "engine/model/logit_distance.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/kv/block_pool.h"

namespace tandem::engine {
namespace {

constexpr int64_t kRows = 64;  // computed in one step

// One model over one window at a time.
class Reader {
 public:
  Reader(const std::shared_ptr<const Model>& model, int64_t window, OpsContext& ops)
      : kv_(ModelRunner::KvShape(*model, (window + kTokensPerBlock - 1) / kTokensPerBlock)),
        runner_(model, ops, kRows, kRows),
        blocks_(static_cast<size_t>((window + kTokensPerBlock - 1) / kTokensPerBlock)) {
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i] = {static_cast<uint32_t>(i)};
  }

  // Logits of tokens that stand at `first` and after in their window; those before were read.
  std::span<const float> Read(std::span<const TokenId> tokens, int64_t first) {
    const auto n = static_cast<int64_t>(tokens.size());
    positions_.resize(tokens.size());
    std::iota(positions_.begin(), positions_.end(), static_cast<int32_t>(first));
    rows_.resize(tokens.size());
    std::iota(rows_.begin(), rows_.end(), 0);
    const AttentionSlice slice{
        .first_row = 0, .n_rows = n, .first_position = first, .blocks = blocks_};
    return runner_.Forward({.tokens = tokens,
                            .positions = positions_,
                            .slices = std::span(&slice, 1),
                            .logit_rows = rows_},
                           kv_);
  }

 private:
  KvCache kv_;
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
                "a model's logits are not finite; its weights cannot be compared");
  }
  return result;
}

int64_t ArgMax(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

}  // namespace

LogitDistance MeasureLogitDistance(const std::shared_ptr<const Model>& reference,
                                   const std::shared_ptr<const Model>& model,
                                   std::span<const TokenId> tokens, int64_t window,
                                   OpsContext& ops) {
  const auto require = [](bool holds, const std::string& what) {
    if (!holds) throw Error(ErrorCode::kInvalidArgument, what);
  };
  require(tokens.size() >= 2, "two tokens of text are needed to compare predictions");
  require(window >= 2, "a window must hold two tokens at least");
  const int64_t vocab = reference->config().vocab_size;
  require(vocab == model->config().vocab_size,
          "the models have vocabularies of " + std::to_string(vocab) + " and " +
              std::to_string(model->config().vocab_size) + " tokens");
  for (const Model* each : {reference.get(), model.get()}) {
    require(window <= each->config().max_context_len,
            "a window of " + std::to_string(window) + " tokens exceeds a model's context of " +
                std::to_string(each->config().max_context_len));
  }
  for (const TokenId token : tokens) {
    require(token >= 0 && token < vocab, "token id out of range: " + std::to_string(token));
  }

  Reader theirs(reference, window, ops), ours(model, window, ops);
  LogitDistance distance;
  double their_loss = 0, our_loss = 0;
  int64_t n_predicted = 0, n_same = 0;
  const auto n_tokens = static_cast<int64_t>(tokens.size());
  for (int64_t begin = 0; begin < n_tokens; begin += window) {
    const int64_t end = std::min(n_tokens, begin + window);
    for (int64_t at = begin; at < end; at += kRows) {
      const int64_t n = std::min(kRows, end - at);
      const auto part = tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(n));
      const std::span<const float> a = theirs.Read(part, at - begin);
      const std::span<const float> b = ours.Read(part, at - begin);
      for (int64_t row = 0; row < n; ++row) {
        const auto offset = static_cast<size_t>(row * vocab);
        const auto p = a.subspan(offset, static_cast<size_t>(vocab));
        const auto q = b.subspan(offset, static_cast<size_t>(vocab));
        const double p_norm = LogSumExp(p), q_norm = LogSumExp(q);
        double kl = 0;
        for (size_t i = 0; i < p.size(); ++i) {
          const double log_p = p[i] - p_norm;
          kl += std::exp(log_p) * (log_p - (q[i] - q_norm));
        }
        distance.mean_kl += kl;
        distance.max_kl = std::max(distance.max_kl, kl);
        n_same += ArgMax(p) == ArgMax(q) ? 1 : 0;
        ++distance.n_positions;
        if (at + row + 1 == end) continue;
        const auto next = static_cast<size_t>(tokens[static_cast<size_t>(at + row + 1)]);
        their_loss += p_norm - p[next];
        our_loss += q_norm - q[next];
        ++n_predicted;
      }
    }
  }
  const auto n = static_cast<double>(distance.n_positions);
  distance.mean_kl /= n;
  distance.same_first_choice = static_cast<double>(n_same) / n;
  distance.reference_perplexity = std::exp(their_loss / static_cast<double>(n_predicted));
  distance.perplexity = std::exp(our_loss / static_cast<double>(n_predicted));
  return distance;
}

}  // namespace tandem::engine
