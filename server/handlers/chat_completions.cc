#include <nlohmann/json.hpp>

#include "server/handlers/chat_answer.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/generate.h"
#include "server/handlers/handlers.h"
#include "server/wire/chat_request.h"

namespace tandem::server {
namespace {

// POST /v1/chat/completions
void ChatCompletions(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const nlohmann::ordered_json body = ParseJsonObject(request.body);
  const auto model =
      context.models.Find(FieldReader(body).RequiredString("model"), ViewerOf(context, request));
  PreparedChat chat = PrepareChat(context, *model, ParseChatRequest(body, LimitsOf(*model)),
                                  "chatcmpl-", request.id);
  if (!chat.ignored.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(chat.ignored));
  }
  Generate(context, model, std::move(chat.requests), std::move(chat.shape), request, writer);
}

}  // namespace

std::span<const Endpoint> ChatEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"POST", "/v1/chat/completions", ChatCompletions, Access::kApiKey, RunsOn::kRequestPool,
       true},
  };
  return kEndpoints;
}

}  // namespace tandem::server
