#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "server/wire/generation_fields.h"
#include "server/wire/responses/responses_input.h"
#include "server/wire/responses/responses_tools.h"

namespace tandem::server {

// POST /v1/responses, checked and translated.
struct ResponsesRequest {
  // A body for ParseChatRequest.
  std::shared_ptr<const nlohmann::ordered_json> chat;
  // The members of the response object that repeat the request, with their effective values.
  // `temperature`, `top_p` and the penalties are null where the request leaves them to the model.
  std::shared_ptr<const nlohmann::ordered_json> settings;
  ResponsesInput input;
  ResponsesTools tools;
  bool stream = false;
  bool store = true;
  bool is_background = false;
  bool truncates = false;  // `truncation` is auto
};

// The caller reads `model` first: an unknown model is reported before any other fault. Throws
// kInvalidArgument (previous_response_not_found) if `lookup` knows no such response.
ResponsesRequest ParseResponsesRequest(const nlohmann::ordered_json& body,
                                       const ModelLimits& limits, const ResponsesLookup& lookup);

// The error of ParseChatRequest or PrepareChat, with the fields of this API in place of a chat's.
Error InResponsesTerms(const Error& error, const ResponsesRequest& request);

}  // namespace tandem::server
