#pragma once

#include <atomic>
#include <chrono>
#include <string>

#include "server/handlers/model_registry.h"
#include "server/http/request.h"
#include "server/http/response_writer.h"

namespace tandem::server {

// What handlers may use. Owned by the app; outlives every request.
struct HandlerContext {
  ModelRegistry& models;
  std::atomic<bool>& is_loading;
  std::atomic<bool>& is_draining;
  std::chrono::milliseconds request_timeout{0};  // 0: none
  std::string base_url;                          // "http://127.0.0.1:8080", for the text of GET /
};

// One per endpoint, in the file of its name. Each parses, acts and answers; faults are thrown as
// Error and become bodies in the dispatch.
void ChatCompletions(const HandlerContext& context, Request request, ResponseWriter writer);
void Completions(const HandlerContext& context, Request request, ResponseWriter writer);
void ListModels(const HandlerContext& context, Request request, ResponseWriter writer);
void GetModel(const HandlerContext& context, Request request, ResponseWriter writer);
void Tokenize(const HandlerContext& context, Request request, ResponseWriter writer);
void Detokenize(const HandlerContext& context, Request request, ResponseWriter writer);
// These run on an io thread: they may not wait.
void Health(const HandlerContext& context, Request request, ResponseWriter writer);
void Ready(const HandlerContext& context, Request request, ResponseWriter writer);
void Version(const HandlerContext& context, Request request, ResponseWriter writer);
void Welcome(const HandlerContext& context, Request request, ResponseWriter writer);

// Throws kInvalidArgument (unsupported_media_type) unless the body is declared as JSON.
void RequireJson(const Request& request);

}  // namespace tandem::server
