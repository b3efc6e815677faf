#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "server/handlers/chat_answer.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/generate.h"
#include "server/handlers/llama_server/generation_settings.h"
#include "server/handlers/prompt.h"
#include "server/handlers/tool_formats.h"
#include "server/respond/llama_server_renderer.h"
#include "server/wire/json_text.h"
#include "server/wire/llama_server/completion.h"
#include "server/wire/tokenize_request.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

void AnswerLlamaServer(const HandlerContext& context, LlamaServerRoute route,
                       const Request& request, const ResponseWriter& writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  const auto model =
      context.models.Find(FieldReader(body).String("model"), ViewerOf(context, request));
  const LlamaServerCompletion asked = ParseLlamaServerCompletion(body, route, LimitsOf(*model));
  PreparedChat prepared = PrepareCompletion(*model, asked.completion, "cmpl-", request.id);
  prepared.shape.return_token_ids = true;
  if (!prepared.ignored.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(prepared.ignored));
  }
  LlamaServerReply reply;
  reply.returns_tokens = asked.returns_tokens;
  reply.settings =
      GenerationSettings(*model, prepared.requests.front().sampling, prepared.requests.front().stop)
          .dump(-1, ' ', false, Json::error_handler_t::replace);
  Generate(context, model, std::move(prepared.requests), std::move(prepared.shape), request, writer,
           [&reply](ReplyShape shape, const ResponseWriter& to) -> std::unique_ptr<EventRenderer> {
             return std::make_unique<LlamaServerRenderer>(std::move(shape), std::move(reply), to);
           });
}

// POST /completion
void LlamaServerComplete(const HandlerContext& context, Request request, ResponseWriter writer) {
  AnswerLlamaServer(context, LlamaServerRoute::kCompletion, request, writer);
}

// POST /infill
void LlamaServerInfill(const HandlerContext& context, Request request, ResponseWriter writer) {
  AnswerLlamaServer(context, LlamaServerRoute::kInfill, request, writer);
}

// POST /apply-template
void ApplyTemplate(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  const auto model =
      context.models.Find(FieldReader(body).String("model"), ViewerOf(context, request));
  RenderRequest render = ParseRenderRequest(body, LimitsOf(*model));
  if (render.train) {
    throw UnsupportedField("train", "train is not supported here: use /v1/render");
  }
  PrepareTools(context, *model, render.chat);
  const EncodedChat chat = EncodeChat(*model, render.chat);
  if (!render.ignored.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(render.ignored));
  }
  std::string out = R"({"prompt":)";
  AppendJsonString(out, engine::JoinPieces(chat.pieces));
  out.push_back('}');
  writer.Json(200, std::move(out));
}

}  // namespace

std::span<const Endpoint> LlamaServerCompletionEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {.method = "POST", .pattern = "/completion", .handle = LlamaServerComplete, .is_heavy = true},
      {.method = "POST", .pattern = "/infill", .handle = LlamaServerInfill, .is_heavy = true},
      {.method = "POST", .pattern = "/apply-template", .handle = ApplyTemplate},
  };
  return kEndpoints;
}

}  // namespace tandem::server
