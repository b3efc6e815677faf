#pragma once

#include <string_view>
#include <utility>

#include "engine/engine.h"
#include "server/http/request.h"
#include "server/wire/error_body.h"

namespace tandem::server {

// An error as a complete answer.
inline Response ToResponse(ErrorReply reply) {
  Response response;
  response.status = reply.status;
  response.body = std::move(reply.body);
  response.headers = std::move(reply.headers);
  response.error_code = std::move(reply.code);
  response.error_message = std::move(reply.message);
  return response;
}

// Anthropic's shape of errors, for ApiStyle.
inline void RewriteForAnthropic(Response& response, const std::string& request_id) {
  ErrorReply reply;
  reply.status = response.status;
  reply.code = response.error_code;
  reply.message = std::move(response.error_message);
  reply.headers = std::move(response.headers);
  response = ToResponse(InAnthropicShape(std::move(reply), request_id));
}

// Ollama's shape of errors, for ApiStyle.
inline void RewriteForOllama(Response& response, const std::string&) {
  ErrorReply reply;
  reply.status = response.status;
  reply.code = response.error_code;
  reply.message = std::move(response.error_message);
  reply.headers = std::move(response.headers);
  response = ToResponse(InOllamaShape(std::move(reply)));
}

// The error of an engine request that did not complete.
inline ErrorReply EndReply(const engine::RequestFinished& finished, std::string_view request_id) {
  if (finished.outcome == engine::RequestFinished::Outcome::kCancelled) {
    return MakeErrorReply(503, "shutting_down", "the request was cancelled by the server");
  }
  return MakeErrorReply(Error(finished.code, finished.message).WithReason(finished.reason),
                        request_id);
}

}  // namespace tandem::server
