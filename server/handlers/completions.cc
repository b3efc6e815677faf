#include <nlohmann/json.hpp>
#include <utility>

#include "server/handlers/chat_answer.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/generate.h"
#include "server/handlers/handlers.h"
#include "server/wire/completion_request.h"

namespace tandem::server {
namespace {

// POST /v1/completions
void Completions(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const nlohmann::ordered_json body = ParseJsonObject(request.body);
  const auto model =
      context.models.Find(FieldReader(body).RequiredString("model"), ViewerOf(context, request));
  const CompletionRequest completion = ParseCompletionRequest(body, LimitsOf(*model));
  PreparedChat prepared = PrepareCompletion(*model, completion, "cmpl-", request.id);
  if (!completion.ignored.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(completion.ignored));
  }
  Generate(context, model, std::move(prepared.requests), std::move(prepared.shape), request,
           writer);
}

}  // namespace

std::span<const Endpoint> CompletionEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"POST", "/v1/completions", Completions, Access::kApiKey, RunsOn::kRequestPool, true},
  };
  return kEndpoints;
}

}  // namespace tandem::server
