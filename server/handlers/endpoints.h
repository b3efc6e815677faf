#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "server/handlers/handlers.h"
#include "server/http/router.h"

namespace tandem::server {

// Whose API a route belongs to; decides the shape of its errors.
enum class ApiKind { kOpenAi, kAnthropic, kOllama };

// A route of the API and the function that answers it. The function parses, acts and responds. It
// throws a fault as Error; the dispatch of server/http turns that into an error body. Every handler
// file returns its endpoints in a list; endpoints.cc joins the lists. Tests compare the endpoints
// with openapi.json and with the examples in API.md.
struct Endpoint {
  const char* method;
  const char* pattern;  // as Route::pattern
  void (*handle)(const HandlerContext& context, Request request, ResponseWriter writer);
  Access access = Access::kApiKey;
  RunsOn runs_on = RunsOn::kRequestPool;
  bool is_heavy = false;  // Admission may refuse it under load
  // Set: opens the sink that receives an upload while it arrives. The body may hold one file of
  // HandlerContext::max_file_bytes.
  std::shared_ptr<BodySink> (*open_body)(const HandlerContext& context, const Request& head,
                                         std::function<void()> has_room) = nullptr;
  ApiKind api = ApiKind::kOpenAi;
};

std::vector<Endpoint> AllEndpoints();

// The routes of all endpoints. `context` must outlive the result.
std::vector<Route> AllRoutes(const HandlerContext& context);

}  // namespace tandem::server
