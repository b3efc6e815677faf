#include "server/handlers/endpoints.h"

#include <string>
#include <utility>

#include "server/respond/error_response.h"

namespace tandem::server {

// THE list: a file of handlers is declared here and named in AllEndpoints.
std::span<const Endpoint> StatusEndpoints();
std::span<const Endpoint> ConsoleEndpoints();
std::span<const Endpoint> MetricsEndpoints();
std::span<const Endpoint> OpenApiEndpoints();
std::span<const Endpoint> ModelEndpoints();
std::span<const Endpoint> ChatEndpoints();
std::span<const Endpoint> ResponsesEndpoints();
std::span<const Endpoint> CompletionEndpoints();
std::span<const Endpoint> MessagesEndpoints();
std::span<const Endpoint> EmbeddingEndpoints();
std::span<const Endpoint> RerankEndpoints();
std::span<const Endpoint> TokenizeEndpoints();
std::span<const Endpoint> RenderEndpoints();
std::span<const Endpoint> FileEndpoints();
std::span<const Endpoint> BatchEndpoints();
std::span<const Endpoint> FineTuningJobEndpoints();
std::span<const Endpoint> FineTuningFollowEndpoints();
std::span<const Endpoint> FineTuningPlanEndpoints();
std::span<const Endpoint> ExamineEndpoints();
std::span<const Endpoint> AdminModelEndpoints();
std::span<const Endpoint> AvailableModelEndpoints();
std::span<const Endpoint> AdapterEndpoints();
std::span<const Endpoint> AliasEndpoints();
std::span<const Endpoint> ConvertEndpoints();
std::span<const Endpoint> AdminJobEndpoints();
std::span<const Endpoint> AdminKeyEndpoints();
std::span<const Endpoint> OllamaChatEndpoints();
std::span<const Endpoint> OllamaModelEndpoints();
std::span<const Endpoint> OllamaEmbedEndpoints();
std::span<const Endpoint> OllamaPullEndpoints();
std::span<const Endpoint> OllamaAbsentEndpoints();
std::span<const Endpoint> LlamaServerCompletionEndpoints();
std::span<const Endpoint> LlamaServerPropsEndpoints();

namespace {

// Room for a form's bytes besides its file: names, boundaries, fields.
constexpr size_t kFormBytes = 1 << 20;

constexpr ApiStyle kAnthropicStyle = {.rewrite_error = RewriteForAnthropic,
                                      .error_event = "error",
                                      .request_id_header = "request-id"};
constexpr ApiStyle kOllamaStyle = {.rewrite_error = RewriteForOllama,
                                   .error_event = {},
                                   .request_id_header = {},
                                   .streams_lines = true};

const ApiStyle* StyleOf(ApiKind api) {
  if (api == ApiKind::kAnthropic) return &kAnthropicStyle;
  return api == ApiKind::kOllama ? &kOllamaStyle : nullptr;
}

Route RouteOf(const Endpoint& endpoint, const HandlerContext& context) {
  Route route{.method = endpoint.method,
              .pattern = endpoint.pattern,
              .handler =
                  [&context, handle = endpoint.handle](Request request, ResponseWriter writer) {
                    handle(context, std::move(request), std::move(writer));
                  },
              .access = endpoint.access,
              .runs_on = endpoint.runs_on,
              .is_heavy = endpoint.is_heavy,
              .style = StyleOf(endpoint.api)};
  if (endpoint.open_body == nullptr) return route;
  route.open_body = [&context, open = endpoint.open_body](const Request& head,
                                                          std::function<void()> has_room) {
    return open(context, head, std::move(has_room));
  };
  route.max_body_bytes = static_cast<size_t>(context.max_file_bytes) + kFormBytes;
  return route;
}

}  // namespace

std::vector<Endpoint> AllEndpoints() {
  const std::span<const Endpoint> lists[] = {
      StatusEndpoints(),
      MetricsEndpoints(),
      OpenApiEndpoints(),
      ModelEndpoints(),
      ChatEndpoints(),
      ResponsesEndpoints(),
      CompletionEndpoints(),
      MessagesEndpoints(),
      EmbeddingEndpoints(),
      RerankEndpoints(),
      TokenizeEndpoints(),
      RenderEndpoints(),
      FileEndpoints(),
      BatchEndpoints(),
      FineTuningJobEndpoints(),
      FineTuningFollowEndpoints(),
      FineTuningPlanEndpoints(),
      ExamineEndpoints(),
      AdminModelEndpoints(),
      AvailableModelEndpoints(),
      AdapterEndpoints(),
      AliasEndpoints(),
      ConvertEndpoints(),
      AdminJobEndpoints(),
      AdminKeyEndpoints(),
      ConsoleEndpoints(),
      OllamaChatEndpoints(),
      OllamaModelEndpoints(),
      OllamaEmbedEndpoints(),
      OllamaAbsentEndpoints(),
      OllamaPullEndpoints(),
      LlamaServerCompletionEndpoints(),
      LlamaServerPropsEndpoints(),
  };
  std::vector<Endpoint> all;
  for (const std::span<const Endpoint> list : lists) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

std::vector<Route> AllRoutes(const HandlerContext& context) {
  std::vector<Route> routes;
  for (const Endpoint& endpoint : AllEndpoints()) routes.push_back(RouteOf(endpoint, context));
  return routes;
}

}  // namespace tandem::server
