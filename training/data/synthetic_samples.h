#pragma once

#include <string>

#include "training/data/order/permutation.h"
#include "training/data/sample_source.h"

namespace tandem::training {

// Random tokens, for runs that need no data: measurements and first tries. A few samples, so that a
// model can learn them by heart and its loss falls.
class SyntheticSamples final : public SampleSource {
 public:
  static constexpr int64_t kCount = 64;

  // Samples of `n_tokens` tokens below `vocab_size`.
  SyntheticSamples(int64_t n_tokens, int64_t vocab_size, uint64_t seed)
      : n_tokens_(n_tokens), vocab_size_(vocab_size), seed_(seed) {}

  int64_t size() const override { return kCount; }
  Sample Make(int64_t i) const override {
    Sample sample;
    for (int64_t t = 0; t < n_tokens_; ++t) {
      const uint64_t bits = HashCounter(seed_, static_cast<uint64_t>(i * n_tokens_ + t));
      sample.Append({static_cast<TokenId>(bits % static_cast<uint64_t>(vocab_size_))}, true);
    }
    return sample;
  }
  std::string Where(int64_t i) const override {
    return "synthetic sample " + std::to_string(i + 1);
  }

 private:
  int64_t n_tokens_;
  int64_t vocab_size_;
  uint64_t seed_;
};

}  // namespace tandem::training
