#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "server/handlers/chat_answer.h"
#include "server/handlers/handlers.h"
#include "server/wire/responses/responses_request.h"

namespace tandem::server {

// A request of POST /v1/responses, ready for Generate.
struct PreparedResponse {
  std::shared_ptr<const ServedModel> model;
  ResponsesRequest request;
  // request.settings with the model's defaults in place of null.
  std::shared_ptr<const nlohmann::ordered_json> settings;
  PreparedChat chat;
};

// Checks the body, finds the model and encodes the prompt. With `truncation` auto, drops the oldest
// messages until the prompt fits. Throws what PrepareChat throws, in the fields of this API.
PreparedResponse PrepareResponse(const HandlerContext& context, const Request& request);

// Names what was left out: x-ignored-params, x-ignored-tools, and a log line.
void AddIgnoredHeaders(const PreparedResponse& prepared, const Request& request,
                       const ResponseWriter& writer);

}  // namespace tandem::server
