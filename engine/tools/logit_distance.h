#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/ids.h"
#include "engine/model/model.h"

namespace tandem::engine {

class Adapter;

// How far a model's predictions are from those of a reference along a text: what rounding weights
// to fewer bits, or converting them, has changed. All in natural logarithms.
struct LogitDistance {
  int64_t n_positions = 0;
  double mean_kl = 0;             // of KL(reference || model) over the positions
  double max_kl = 0;              // the worst position's
  double max_abs_difference = 0;  // of a logit
  double same_first_choice = 0;   // fraction of positions whose likeliest token is the same
  // exp of the mean negative log-likelihood of each next token of the text.
  double reference_perplexity = 0;
  double perplexity = 0;
};

// Runs both models over `tokens`, which are cut into windows of `window` tokens that know nothing
// of each other. The models must have one vocabulary, and `window` (>= 2) must not exceed either's
// context; there must be two tokens at least. Throws kInvalidArgument, also when a logit is not a
// number. Allocates a small KV cache and 2 x 64 rows of logits.
LogitDistance MeasureLogitDistance(const std::shared_ptr<const Model>& reference,
                                   const std::shared_ptr<const Model>& model,
                                   std::span<const TokenId> tokens, int64_t window,
                                   OpsContext& ops);

// What a model says along a text, kept to hold another to when that one has left memory.
struct LogitRecord {
  std::vector<TokenId> tokens;
  int64_t window = 0;
  int64_t vocab_size = 0;
  std::vector<float> logits;  // [tokens, vocab_size]
};
// Throws as MeasureLogitDistance, but takes any logits. `adapter`, if there is one, is the model's.
LogitRecord RecordLogits(const std::shared_ptr<const Model>& model, const Adapter* adapter,
                         std::span<const TokenId> tokens, int64_t window, OpsContext& ops);
// As above, of the record's text and windows; `adapter`, if there is one, is the model's.
LogitDistance MeasureLogitDistance(const LogitRecord& reference,
                                   const std::shared_ptr<const Model>& model, OpsContext& ops,
                                   const Adapter* adapter = nullptr);

// Of two runs of equal length; not a number when a difference is none.
double LargestLogitDifference(std::span<const float> a, std::span<const float> b);

// Ids that are spread over the vocabulary, the same ones every time: a text for any model.
std::vector<TokenId> SpreadTokens(int64_t vocab_size, int64_t count);

}  // namespace tandem::engine
