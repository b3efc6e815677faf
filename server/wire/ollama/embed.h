#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tandem::server {

enum class OllamaEmbedRoute { kEmbed, kEmbeddings };

// POST /api/embed or /api/embeddings, checked.
struct OllamaEmbedRequest {
  std::vector<std::string> texts;  // none is empty; no texts: the request only loads the model
  std::string param;               // the field of the texts
  int64_t dimensions = 0;          // leading numbers of each embedding, 1 to hidden_dim
  bool truncates = true;           // a text that exceeds the context is cut
  std::vector<std::string> ignored;
};

// Throws as FieldReader does.
OllamaEmbedRequest ParseOllamaEmbed(const nlohmann::ordered_json& body, OllamaEmbedRoute route,
                                    int64_t hidden_dim);

}  // namespace tandem::server
