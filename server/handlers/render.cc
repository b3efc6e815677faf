#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/generate.h"
#include "server/handlers/handlers.h"
#include "server/handlers/prompt.h"
#include "server/handlers/token_list.h"
#include "server/handlers/tool_formats.h"
#include "server/wire/json_text.h"
#include "server/wire/tokenize_request.h"

namespace tandem::server {
namespace {

TrainedChat NothingLearned(EncodedChat chat) {
  std::vector<bool> loss(chat.ids.size(), false);
  return {engine::JoinPieces(chat.pieces), std::move(chat.ids), std::move(loss)};
}

// Appends the JSON members of one rendered chat, without the braces.
void AppendChat(std::string& out, const TrainedChat& chat, const ServedModel& model) {
  out += R"("text":)";
  AppendJsonString(out, chat.text);
  out += R"(,"tokens":)";
  AppendTokenList(out, model, chat.ids, chat.loss);
  // Only the template can write a chat's BOS: encoding adds none.
  const std::optional<TokenId> bos = model.loaded().bos;
  const bool has_bos = bos && !chat.ids.empty() && chat.ids.front() == *bos;
  out += has_bos ? R"(,"bos_from":"template","count":)" : R"(,"bos_from":null,"count":)";
  AppendJsonInt(out, chat.ids.size());
}

// POST /v1/render
void Render(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const nlohmann::ordered_json body = ParseJsonObject(request.body);
  const auto model =
      context.models.Find(FieldReader(body).String("model"), ViewerOf(context, request));
  RenderRequest render = ParseRenderRequest(body, LimitsOf(*model));

  PrepareTools(context, *model, render.chat);
  std::vector<TrainedChat> samples;
  if (render.train) {
    samples = EncodeTrainedChat(*model, render.chat, [&] { return writer.is_over(); });
  } else {
    samples.push_back(NothingLearned(EncodeChat(*model, render.chat)));
    CheckListedTokens(*model, samples.back().ids.size(), "messages");
  }
  std::string out = "{";
  AppendChat(out, samples.back(), *model);
  // Samples of earlier answers, if training splits the chat.
  for (size_t i = 0; i + 1 < samples.size(); ++i) {
    out += i == 0 ? R"(,"earlier_samples":[{)" : ",{";
    AppendChat(out, samples[i], *model);
    out.push_back('}');
  }
  out += samples.size() > 1 ? "]}" : "}";

  if (!render.ignored.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(render.ignored));
  }
  writer.Json(200, std::move(out));
}

}  // namespace

std::span<const Endpoint> RenderEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"POST", "/v1/render", Render},
  };
  return kEndpoints;
}

}  // namespace tandem::server
