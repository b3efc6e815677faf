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
  PlainPromptOptions plain_prompt;
  std::optional<ChatPrompt> chat;  // set if prompt is unset
  bool return_token_strs = false;
  bool with_pieces = false;  // each token with its text, as llama-server
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
  // With `train` the messages stay unchanged: the trainer's own reader checks and normalises them,
  // including weights.
  ChatPrompt chat;
  bool train = false;  // renders the whole example with its loss mask, as in training
  std::vector<std::string> ignored;
};

RenderRequest ParseRenderRequest(const nlohmann::ordered_json& body, const ModelLimits& limits);

}  // namespace tandem::server
