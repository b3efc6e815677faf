#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::server {

// POST /tokenize: a prompt, or messages.
struct TokenizeRequest {
  std::optional<std::string> prompt;
  bool add_special_tokens = true;
  std::shared_ptr<const nlohmann::ordered_json> messages;  // set when prompt is not
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool return_token_strs = false;
  std::vector<std::string> ignored;
};

TokenizeRequest ParseTokenizeRequest(const nlohmann::ordered_json& body);

// POST /detokenize: the ids, checked against the vocabulary.
std::vector<TokenId> ParseDetokenizeRequest(const nlohmann::ordered_json& body, int64_t vocab_size);

}  // namespace tandem::server
