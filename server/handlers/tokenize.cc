#include <nlohmann/json.hpp>

#include "engine/tokenizer/tokenizer.h"
#include "server/handlers/generate.h"
#include "server/handlers/handlers.h"
#include "server/handlers/prompt.h"
#include "server/wire/logprobs.h"
#include "server/wire/tokenize_request.h"

namespace tandem::server {

using Json = nlohmann::ordered_json;

// POST /tokenize
void Tokenize(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  const auto model = context.models.Find(FieldReader(body).String("model"));
  const TokenizeRequest tokenize = ParseTokenizeRequest(body, LimitsOf(*model));

  const std::vector<TokenId> ids =
      tokenize.chat ? EncodeChat(*model, *tokenize.chat).ids
                    : EncodeText(*model, *tokenize.prompt, tokenize.add_special_tokens);

  Json out;
  out["count"] = ids.size();
  out["max_model_len"] = model->loaded().max_model_len;
  out["tokens"] = ids;
  out["token_strs"] = nullptr;
  if (tokenize.return_token_strs) {
    const TokenNames names{model->loaded().tokenizer, false};
    out["token_strs"] = Json::array();
    for (const TokenId id : ids) out["token_strs"].push_back(names.Name(id));
  }
  if (!tokenize.ignored.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(tokenize.ignored));
  }
  writer.Json(200, out.dump());
}

// POST /detokenize
void Detokenize(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  const auto model = context.models.Find(FieldReader(body).String("model"));
  const DetokenizeRequest detokenize = ParseDetokenizeRequest(body, LimitsOf(*model));
  if (!model->loaded().tokenizer) {
    throw Error(ErrorCode::kFailedPrecondition, "model '" + model->id + "' has no tokenizer");
  }

  // Skipping control tokens lets text survive tokenize and detokenize, with BOS or without.
  const std::string text = engine::Decode(*model->loaded().tokenizer, detokenize.tokens, true);
  Json out;
  out["prompt"] = text;
  out["content"] = text;
  if (!detokenize.ignored.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(detokenize.ignored));
  }
  writer.Json(200, out.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace tandem::server
