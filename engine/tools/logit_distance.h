#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/ids.h"
#include "engine/model/model.h"

namespace tandem::engine {

class Adapter;

// The difference between a model's predictions and a reference's along a text: the effect of
// conversion or of rounding weights to fewer bits. All in natural logarithms.
struct LogitDistance {
  int64_t n_positions = 0;
  double mean_kl = 0;             // of KL(reference || model) over the positions
  double max_kl = 0;              // of the worst position
  double max_abs_difference = 0;  // of a logit
  double same_first_choice = 0;   // fraction of positions with the same likeliest token
  // exp of the mean negative log-likelihood of the text's next tokens.
  double reference_perplexity = 0;
  double perplexity = 0;
};

// Runs both models over `tokens`, which are cut into independent windows of `window` tokens. The
// models must have the same vocabulary size, `window` (>= 2) must not exceed either context, and
// there must be at least two tokens. Throws kInvalidArgument if not, and when logits are not
// finite. Allocates a small KV cache and 2 x 64 rows of logits. The model stores its keys and
// values as `kv` says, the reference in its compute type.
LogitDistance MeasureLogitDistance(const std::shared_ptr<const Model>& reference,
                                   const std::shared_ptr<const Model>& model,
                                   std::span<const TokenId> tokens, int64_t window, OpsContext& ops,
                                   KvFormat kv = KvFormat::kCompute);

// A model's logits along a text, kept for comparison after the model has left memory.
struct LogitRecord {
  std::vector<TokenId> tokens;
  int64_t window = 0;
  int64_t vocab_size = 0;
  std::vector<float> logits;  // [tokens, vocab_size]
};
// Throws as MeasureLogitDistance, but accepts any logits. `adapter` (may be null) applies to the
// model.
LogitRecord RecordLogits(const std::shared_ptr<const Model>& model, const Adapter* adapter,
                         std::span<const TokenId> tokens, int64_t window, OpsContext& ops);
// As above, with the record's text and windows; `adapter` (may be null) applies to the model.
LogitDistance MeasureLogitDistance(const LogitRecord& reference,
                                   const std::shared_ptr<const Model>& model, OpsContext& ops,
                                   const Adapter* adapter = nullptr);

// For two runs of equal length; NaN when a difference is NaN.
double LargestLogitDifference(std::span<const float> a, std::span<const float> b);

// Ids spread evenly over the vocabulary, always the same: a text for any model.
std::vector<TokenId> SpreadTokens(int64_t vocab_size, int64_t count);

}  // namespace tandem::engine
