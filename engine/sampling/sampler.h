#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/ids.h"
#include "engine/sampling/logprobs.h"
#include "engine/sampling/sampling_params.h"
#include "engine/sampling/select.h"

namespace tandem::engine {

// Memory that one worker reuses from draw to draw.
struct SamplerScratch {
  std::vector<float> row;        // adjusted logits, when any adjustment applies
  std::vector<TokenId> allowed;  // by a mask of few tokens
  std::vector<float> run_maxima;
  std::vector<Candidate> candidates;
  std::vector<Candidate> buffer;
  ScoreScratch score;
  std::vector<float> weights;
  std::vector<double> block_masses;
};

// Chooses the tokens of one choice of one request. The order is logit_bias, repetition, presence,
// frequency, mask, temperature, top_k, top_p, min_p, draw. A token depends only on the logits, the
// parameters, the mask, the tokens accepted so far and its position. Never sorts the vocabulary.
// Sample is const; one thread at a time may run it.
class Sampler {
 public:
  // The repetition penalty counts `prompt`.
  Sampler(SamplingParams params, int choice, std::span<const TokenId> prompt);

  // The token for `position` of the sequence. `banned` tokens cannot be drawn (end tokens before
  // min_tokens). `mask` has one bit per token, in words of 32: a set bit allows the token. An empty
  // mask allows all. Returns -1 if no token is allowed, or if the logits are NaN.
  TokenId Sample(std::span<const float> logits, int64_t position, std::span<const TokenId> banned,
                 SamplerScratch& scratch, std::span<const uint32_t> mask = {}) const;

  // Adds the token to the sequence; later penalties count it.
  void Accept(TokenId token);

  const SamplingParams& params() const { return params_; }

 private:
  struct Seen {
    TokenId id = 0;
    int32_t generated = 0;  // times; 0 for a prompt token that was not generated
  };

  std::span<const float> Adjust(std::span<const float> logits, std::span<const TokenId> banned,
                                std::span<const uint32_t> mask, SamplerScratch& scratch) const;
  std::span<const float> AdjustListed(std::span<const float> logits,
                                      std::span<const TokenId> banned,
                                      SamplerScratch& scratch) const;
  template <class Entry>
  void AdjustEntries(std::span<const float> logits, std::span<const TokenId> banned,
                     std::vector<float>& row, const Entry& entry) const;
  // The index of an entry of the row.
  TokenId Draw(std::span<const float> row, int64_t position, SamplerScratch& scratch) const;

  SamplingParams params_;
  int choice_;
  bool counts_tokens_;      // any penalty is on
  bool restricts_;          // any logit_bias is +100
  std::vector<Seen> seen_;  // by id
};

}  // namespace tandem::engine
