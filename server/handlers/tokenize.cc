#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/utf8.h"
#include "engine/chat/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/generate.h"
#include "server/handlers/handlers.h"
#include "server/handlers/prompt.h"
#include "server/handlers/token_list.h"
#include "server/handlers/tool_formats.h"
#include "server/wire/json_text.h"
#include "server/wire/logprobs.h"
#include "server/wire/tokenize_request.h"

namespace tandem::server {

using Json = nlohmann::ordered_json;

namespace {

// Appends `[{"id":1,"piece":"a"},…]`. A piece that is no text of its own is a list of bytes.
void AppendPieces(std::string& out, const ServedModel& model, std::span<const TokenId> ids) {
  const engine::Tokenizer& tokenizer = *model.loaded().tokenizer;
  out.push_back('[');
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out.push_back(',');
    out += R"({"id":)";
    AppendJsonInt(out, ids[i]);
    out += R"(,"piece":)";
    const std::string bytes(tokenizer.TokenBytes(ids[i]));
    if (IsValidUtf8(bytes)) {
      AppendJsonString(out, bytes);
    } else {
      AppendJsonBytes(out, bytes);
    }
    out.push_back('}');
  }
  out.push_back(']');
}

// POST /tokenize
void Tokenize(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  const auto model =
      context.models.Find(FieldReader(body).String("model"), ViewerOf(context, request));
  TokenizeRequest tokenize = ParseTokenizeRequest(body, LimitsOf(*model));

  if (tokenize.chat) PrepareTools(context, *model, *tokenize.chat);
  const std::vector<TokenId> ids =
      tokenize.chat ? EncodeChat(*model, *tokenize.chat).ids
                    : EncodeText(*model, *tokenize.prompt, tokenize.plain_prompt);
  CheckListedTokens(*model, ids.size(), tokenize.chat ? "messages" : "prompt");

  std::string out = R"({"count":)";
  AppendJsonInt(out, ids.size());
  out += R"(,"max_model_len":)";
  AppendJsonInt(out, model->loaded().max_model_len);
  out += R"(,"tokens":)";
  if (tokenize.with_pieces) {
    AppendPieces(out, *model, ids);
  } else {
    AppendJsonInts(out, ids);
  }
  out += R"(,"token_strs":)";
  if (tokenize.return_token_strs) {
    const TokenNames names{model->loaded().tokenizer, false};
    out.push_back('[');
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) out.push_back(',');
      AppendJsonString(out, names.Name(ids[i]));
    }
    out.push_back(']');
  } else {
    out += "null";
  }
  out.push_back('}');
  if (!tokenize.ignored.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(tokenize.ignored));
  }
  writer.Json(200, std::move(out));
}

// POST /detokenize
void Detokenize(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  const auto model =
      context.models.Find(FieldReader(body).String("model"), ViewerOf(context, request));
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

// GET /tokenizer_info. Evaluation programs look for it before they use /tokenize.
void TokenizerInfo(const HandlerContext& context, Request request, ResponseWriter writer) {
  const std::string* name = request.FindQuery("model");
  const auto model = context.models.Find(name != nullptr ? std::optional(*name) : std::nullopt,
                                         ViewerOf(context, request));
  const engine::LoadedModel& loaded = model->loaded();
  const auto text = [](const std::string& token) { return token.empty() ? Json() : Json(token); };
  Json out;
  out["tokenizer_class"] = "tandem";
  out["bos_token"] = text(loaded.bos_text);
  out["eos_token"] = text(loaded.eos_text);
  out["add_bos_token"] = loaded.add_bos;
  out["model_max_length"] = loaded.max_model_len;
  out["vocab_size"] = loaded.vocab_size;
  const auto& chat_template = loaded.chat_template;
  out["chat_template"] = chat_template ? Json(std::string(chat_template->source())) : Json();
  writer.Json(200, out.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

std::span<const Endpoint> TokenizeEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"POST", "/tokenize", Tokenize},
      {"POST", "/detokenize", Detokenize},
      {"GET", "/tokenizer_info", TokenizerInfo},
  };
  return kEndpoints;
}

}  // namespace tandem::server
