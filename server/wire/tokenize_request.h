#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "server/wire/chat_request.h"

namespace tandem::server {

// POST /tokenize: a prompt, or messages.
struct TokenizeRequest {
  std::optional<std::string> prompt;
  bool add_special_tokens = true;
  std::optional<ChatPrompt> chat;  // set when prompt is not
  bool return_token_strs = false;
  std::vector<std::string> ignored;
};

TokenizeRequest ParseTokenizeRequest(const nlohmann::ordered_json& body, const ModelLimits& limits);

// POST /detokenize
struct DetokenizeRequest {
  std::vector<TokenId> tokens;  // checked against the vocabulary
  std::vector<std::string> ignored;
};

DetokenizeRequest ParseDetokenizeRequest(const nlohmann::ordered_json& body,
                                         const ModelLimits& limits);

// POST /v1/render
struct RenderRequest {
  // With `train` the messages stay as they came: the trainer's own reader checks and normalises
  // them, weights included.
  ChatPrompt chat;
  bool train = false;  // as training sees it: whole, and with a loss mask
  std::vector<std::string> ignored;
};

RenderRequest ParseRenderRequest(const nlohmann::ordered_json& body, const ModelLimits& limits);

}  // namespace tandem::server
