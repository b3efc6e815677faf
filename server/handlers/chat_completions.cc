#include <limits>
#include <nlohmann/json.hpp>

#include "server/handlers/generate.h"
#include "server/handlers/handlers.h"
#include "server/handlers/prompt.h"
#include "server/wire/chat_request.h"

namespace tandem::server {

// POST /v1/chat/completions
void ChatCompletions(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const nlohmann::ordered_json body = ParseJsonObject(request.body);
  const auto model = context.models.Find(FieldReader(body).RequiredString("model"));
  ChatRequest chat = ParseChatRequest(body, LimitsOf(*model));

  std::vector<TokenId> prompt = EncodeChat(*model, chat.prompt).ids;
  CheckPromptLength(*model, prompt.size(), "messages");

  const engine::SamplingParams sampling =
      MakeSamplingParams(chat.generation, model->loaded().default_sampling);
  ReplyShape shape = MakeReplyShape(*model, chat.generation, "chatcmpl-", request.id);
  shape.kind = ReplyShape::Kind::kChat;
  shape.top_logprobs = chat.top_logprobs;
  shape.prompts.push_back({prompt, {}});
  engine::GenerationRequest generation =
      MakeGenerationRequest(*model, chat.generation, sampling, std::move(prompt),
                            chat.max_tokens.value_or(std::numeric_limits<int64_t>::max()));
  generation.top_logprobs = chat.top_logprobs;

  if (!chat.ignored.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(chat.ignored));
  }
  std::vector<engine::GenerationRequest> requests;
  requests.push_back(std::move(generation));
  Generate(context, model, std::move(requests), std::move(shape), request, writer);
}

}  // namespace tandem::server
