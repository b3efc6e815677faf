#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/wire/completion_request.h"

namespace tandem::server {

enum class EmbeddingEncoding { kFloat, kBase64 };

// Properties of a model that bound a request for embeddings.
struct EmbeddingLimits {
  int64_t vocab_size = 0;
  int64_t hidden_dim = 0;
};

// POST /v1/embeddings, checked.
struct EmbeddingRequest {
  std::vector<Prompt> inputs;  // at least one; none is empty
  EmbeddingEncoding encoding = EmbeddingEncoding::kFloat;
  int64_t dimensions = 0;                  // leading numbers of each embedding, 1 to hidden_dim
  std::optional<engine::Pooling> pooling;  // unset: the model's
  int priority = 0;
  std::vector<std::string> ignored;
};
EmbeddingRequest ParseEmbeddingRequest(const nlohmann::ordered_json& body,
                                       const EmbeddingLimits& limits);

// POST /v1/score, checked: every second text against the first one, or pair by pair.
struct ScoreRequest {
  std::vector<std::string> first;   // one, or as many as `second`
  std::vector<std::string> second;  // at least one
  std::optional<engine::Pooling> pooling;
  int priority = 0;
  std::vector<std::string> ignored;
};
ScoreRequest ParseScoreRequest(const nlohmann::ordered_json& body);

// POST /v1/rerank, checked.
struct RerankRequest {
  std::string query;
  std::vector<std::string> documents;  // at least one
  int64_t top_n = 0;                   // 1 to the number of documents
  bool return_documents = false;
  std::optional<engine::Pooling> pooling;
  int priority = 0;
  std::vector<std::string> ignored;
};
RerankRequest ParseRerankRequest(const nlohmann::ordered_json& body);

}  // namespace tandem::server
