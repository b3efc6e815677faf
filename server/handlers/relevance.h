#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/models/model_registry.h"

namespace tandem::server {

// Scores pairs of texts with a model: by the cosine of their embeddings, or by the answer of a
// causal reranker, which says "yes" or "no" to a document. One thread at a time.
class Relevance {
 public:
  struct Texts {
    std::vector<std::string> first;  // one for all of `second`, or one for each
    std::string first_param;         // its field, for errors
    std::vector<std::string> second;
    std::string second_param;
    std::optional<engine::Pooling> pooling;  // set: by cosine
    int priority = 0;
  };
  // Without `pooling`, a model whose chat template is Qwen3-Reranker's scores by its answer. Throws
  // as EncodeInput and PoolingOf.
  Relevance(const ServedModel& model, const Texts& texts);

  // The engine's requests; call once.
  std::vector<engine::GenerationRequest> TakeRequests() { return std::move(requests_); }
  int64_t n_tokens() const { return n_tokens_; }  // of all requests
  // Takes the numbers of one request (VectorAnswer::take).
  void Take(size_t request, const std::vector<float>& values);
  // One score for each of `second`: the cosine in [-1, 1], or the probability of "yes" against
  // "no". REQUIRES: every request's numbers were taken.
  std::vector<double> Scores() const;

 private:
  void Add(engine::GenerationRequest request);

  std::vector<engine::GenerationRequest> requests_;
  int64_t n_tokens_ = 0;
  int64_t dimensions_ = 0;  // of the embeddings; 0: scores by answer
  size_t n_first_ = 0;
  std::vector<std::vector<float>> results_;  // by request: unit vectors, or two log-probabilities
};

}  // namespace tandem::server
