#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/attempt.h"
#include "server/handlers/chat_answer.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/generate.h"
#include "server/handlers/ollama/ollama_model.h"
#include "server/handlers/prompt.h"
#include "server/models/model_host.h"
#include "server/respond/ollama_renderer.h"
#include "server/wire/ollama/request.h"
#include "server/wire/ollama/timestamp.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using OllamaRoute = OllamaReply::Route;

// A request of one of both routes.
struct OllamaCall {
  OllamaRoute route = OllamaRoute::kChat;
  std::string name;  // as the client wrote it
  std::shared_ptr<const ServedModel> model;
  OllamaRequest asked;
};

// The answer to a request that only loads or unloads.
std::string EmptyOllamaAnswer(const OllamaCall& call, const char* reason) {
  Json out;
  out["model"] = call.name;
  out["created_at"] = OllamaTime(std::chrono::system_clock::now());
  if (call.route == OllamaRoute::kChat) {
    out["message"] = {{"role", "assistant"}, {"content", ""}};
  } else {
    out["response"] = "";
  }
  out["done"] = true;
  out["done_reason"] = reason;
  return out.dump();
}

// Unloads the model for an administrator. Other clients may not take a model from the rest.
void UnloadOllamaModel(const HandlerContext& context, OllamaCall call, const Request& request,
                       const ResponseWriter& writer) {
  if (!request.sees_all_records) {
    throw Error(ErrorCode::kPermissionDenied,
                "keep_alive 0 without a prompt unloads the model for everyone: it needs a key with "
                "the scope admin")
        .WithReason("insufficient_permissions");
  }
  RequireJobs(context);
  ModelHost* host = context.model_host;
  if (host == nullptr) throw NotReady(context);
  const std::string id = call.model->id;
  call.model.reset();  // the unload waits for this lease too
  const std::string record = Json{{"id", id}}.dump();
  host->Unload(id, /*force=*/false, record,
               [writer, answer = EmptyOllamaAnswer(call, "unload")](const Job&) mutable {
                 writer.Json(200, std::move(answer));
               });
}

// Puts the tokens of an earlier answer before the new turn.
void PrependContext(const ServedModel& model, const std::vector<TokenId>& context,
                    ChatRequest& chat) {
  std::vector<TokenId> turn = EncodeChat(model, chat.prompt).ids;
  const auto bos = model.loaded().bos;
  const bool has_bos = bos && !turn.empty() && turn.front() == *bos && context.front() == *bos;
  std::vector<TokenId> ids = context;
  ids.insert(ids.end(), turn.begin() + (has_bos ? 1 : 0), turn.end());
  chat.prompt_ids = std::move(ids);
}

PreparedChat PrepareOllama(const HandlerContext& context, const OllamaCall& call,
                           const std::string& request_id) {
  const ServedModel& model = *call.model;
  const OllamaRequest& asked = call.asked;
  if (!asked.is_plain) {
    ChatRequest chat = ParseChatRequest(*asked.body, LimitsOf(model));
    if (!asked.context.empty()) PrependContext(model, asked.context, chat);
    return PrepareChat(context, model, std::move(chat), "ollama-", request_id);
  }
  CompletionRequest completion = ParseCompletionRequest(*asked.body, LimitsOf(model));
  if (!asked.context.empty()) {
    std::vector<TokenId> ids = asked.context;
    PlainPromptOptions options = completion.plain_prompt;
    options.add_special_tokens = false;
    const auto& text = std::get<std::string>(completion.prompts.front());
    const std::vector<TokenId> more = EncodeText(model, text, options);
    ids.insert(ids.end(), more.begin(), more.end());
    completion.prompts.front() = std::move(ids);
  }
  return PrepareCompletion(model, completion, "ollama-", request_id);
}

void AnswerOllama(const HandlerContext& context, const OllamaCall& call, const Request& request,
                  const ResponseWriter& writer) {
  PreparedChat prepared = WithContext([](const Error& error) { return InOllamaTerms(error); },
                                      [&] { return PrepareOllama(context, call, request.id); });
  const auto& answer = prepared.shape.answer;
  std::vector<std::string> ignored = call.asked.ignored;
  if (call.asked.thinks && !(answer && answer->reasoning)) ignored.emplace_back("think");
  if (call.asked.is_zero_keep_alive) ignored.emplace_back("keep_alive");
  for (const std::string& name : prepared.ignored) ignored.push_back(InOllamaTerms(name));
  if (!ignored.empty()) writer.AddHeader("x-ignored-params", IgnoredParamsHeader(ignored));

  OllamaReply reply{.route = call.route, .model = call.name};
  // A raw prompt and one with a suffix are no conversation that could go on.
  reply.has_context = call.route == OllamaRoute::kGenerate && !call.asked.is_plain;
  prepared.shape.return_token_ids = reply.has_context;
  Generate(context, call.model, std::move(prepared.requests), std::move(prepared.shape), request,
           writer,
           [&reply](ReplyShape shape, const ResponseWriter& to) -> std::unique_ptr<EventRenderer> {
             return std::make_unique<OllamaRenderer>(std::move(shape), std::move(reply), to);
           });
}

void HandleOllama(const HandlerContext& context, OllamaRoute route, const Request& request,
                  const ResponseWriter& writer) {
  RequireJsonFromPages(request);
  const Json body = ParseJsonObject(request.body);
  OllamaCall call;
  call.route = route;
  call.name = ReadOllamaName(body);
  call.model = FindOllamaModel(context, request, call.name);
  const ModelLimits limits = LimitsOf(*call.model);
  call.asked =
      route == OllamaRoute::kChat
          ? ParseOllamaChat(body, limits)
          : ParseOllamaGenerate(body, limits, call.model->loaded().chat_template != nullptr);
  if (call.asked.body) return AnswerOllama(context, call, request, writer);
  if (call.asked.is_zero_keep_alive) {
    return UnloadOllamaModel(context, std::move(call), request, writer);
  }
  writer.Json(200, EmptyOllamaAnswer(call, "load"));
}

// POST /api/chat
void OllamaChat(const HandlerContext& context, Request request, ResponseWriter writer) {
  HandleOllama(context, OllamaRoute::kChat, request, writer);
}

// POST /api/generate
void OllamaGenerate(const HandlerContext& context, Request request, ResponseWriter writer) {
  HandleOllama(context, OllamaRoute::kGenerate, request, writer);
}

}  // namespace

std::span<const Endpoint> OllamaChatEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {.method = "POST",
       .pattern = "/api/chat",
       .handle = OllamaChat,
       .is_heavy = true,
       .api = ApiKind::kOllama},
      {.method = "POST",
       .pattern = "/api/generate",
       .handle = OllamaGenerate,
       .is_heavy = true,
       .api = ApiKind::kOllama},
  };
  return kEndpoints;
}

}  // namespace tandem::server
