#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/generate.h"
#include "server/handlers/handlers.h"
#include "server/handlers/prompt.h"
#include "server/wire/chat_request.h"

namespace tandem::server {
namespace {

std::optional<ReasoningSplitter::State> ReasoningOf(const HandlerContext& context,
                                                    const ServedModel& model,
                                                    const ChatPrompt& prompt,
                                                    const EncodedChat& encoded) {
  const bool is_on = context.reasoning_parser == ReasoningParser::kThink ||
                     (context.reasoning_parser == ReasoningParser::kAuto &&
                      model.loaded().chat_template->Mentions(kThinkOpen));
  if (!is_on) return std::nullopt;
  if (!prompt.continue_final_message) {
    return StateAfterPrompt(engine::JoinPieces(encoded.pieces));
  }
  return StateWithin(prompt.messages->back()["content"].get<std::string>());
}

// The think marks that are control tokens. They must not be skipped like other control tokens: the
// reasoning splitter looks for them.
std::vector<TokenId> SpecialThinkMarks(const ServedModel& model) {
  std::vector<TokenId> out;
  const engine::Tokenizer& tokenizer = *model.loaded().tokenizer;
  for (const std::string_view mark : {kThinkOpen, kThinkClose}) {
    const std::optional<TokenId> id = tokenizer.FindToken(mark);
    if (id && tokenizer.IsSpecial(*id)) out.push_back(*id);
  }
  return out;
}

// POST /v1/chat/completions
void ChatCompletions(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const nlohmann::ordered_json body = ParseJsonObject(request.body);
  const auto model =
      context.models.Find(FieldReader(body).RequiredString("model"), ViewerOf(context, request));
  ChatRequest chat = ParseChatRequest(body, LimitsOf(*model));

  EncodedChat encoded = EncodeChat(*model, chat.prompt);
  std::vector<TokenId> prompt = std::move(encoded.ids);
  CheckPromptLength(*model, prompt.size(), "messages");

  const engine::SamplingParams sampling =
      MakeSamplingParams(chat.generation, model->loaded().default_sampling);
  ReplyShape shape = MakeReplyShape(*model, chat.generation, "chatcmpl-", request.id);
  shape.kind = ReplyShape::Kind::kChat;
  shape.reasoning = ReasoningOf(context, *model, chat.prompt, encoded);
  if (shape.reasoning) shape.shown_special_tokens = SpecialThinkMarks(*model);
  shape.top_logprobs = chat.top_logprobs;
  shape.prompts.push_back({prompt, {}});
  engine::GenerationRequest generation =
      MakeGenerationRequest(*model, chat.generation, sampling, std::move(prompt),
                            chat.max_tokens.value_or(std::numeric_limits<int64_t>::max()));
  generation.top_logprobs = chat.top_logprobs;
  generation.shown_special_tokens = shape.shown_special_tokens;
  generation.continues_text = chat.prompt.continue_final_message;

  chat.ignored.insert(chat.ignored.end(), encoded.unread.begin(), encoded.unread.end());
  if (!chat.ignored.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(chat.ignored));
  }
  std::vector<engine::GenerationRequest> requests;
  requests.push_back(std::move(generation));
  Constrain(*model, chat.generation, requests, shape);
  Generate(context, model, std::move(requests), std::move(shape), request, writer);
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
