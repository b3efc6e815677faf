#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "engine/chat/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/handlers/chat_answer.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/generate.h"
#include "server/handlers/handlers.h"
#include "server/handlers/prompt.h"
#include "server/handlers/tool_formats.h"
#include "server/respond/generation_reply.h"
#include "server/respond/messages_renderer.h"
#include "server/wire/chat_request.h"
#include "server/wire/json_text.h"
#include "server/wire/messages_request.h"

namespace tandem::server {
namespace {

// A request of one of both routes, with its model and its chat.
struct MessagesCall {
  std::shared_ptr<const ServedModel> model;
  MessagesRequest messages;
};

// Whether the chat template writes a system message after the first turn. Many templates refuse it.
bool TakesLateSystem(const ServedModel& model) {
  const engine::LoadedModel& loaded = model.loaded();
  if (!loaded.chat_template) return true;  // the error comes with the prompt
  static constexpr std::string_view kLate = "Late system message.";
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  const auto add = [&](std::string_view role, std::string_view text) {
    messages.push_back({{"role", role}, {"content", text}});
  };
  add("user", "Question.");
  add("system", kLate);
  add("assistant", "Answer.");
  add("user", "Question.");
  engine::RenderInput input;
  input.messages = &messages;
  input.bos_token = loaded.bos_text;
  input.eos_token = loaded.eos_text;
  std::string text;
  ErrorOf([&] { text = engine::JoinPieces(loaded.chat_template->Render(input)); });
  return text.find(kLate) != std::string::npos;
}

MessagesCall ReadCall(const HandlerContext& context, const Request& request, MessagesRoute route) {
  RequireJson(request);
  const nlohmann::ordered_json body = ParseJsonObject(request.body);
  MessagesCall call;
  call.model =
      context.models.Find(FieldReader(body).RequiredString("model"), ViewerOf(context, request));
  call.messages = ParseMessagesRequest(body, route, LimitsOf(*call.model),
                                       [&] { return TakesLateSystem(*call.model); });
  return call;
}

// Passes the action's result on. Its errors name the fields of the Messages request.
template <class Action>
auto Translated(const MessagesRequest& messages, Action&& action) {
  return WithContext([&](const Error& error) { return InMessagesTerms(error, messages); }, action);
}

// Ends the thought of the answer after its budget. Returns false if the answer has no thought, or
// if the model writes its closing mark as several tokens, which cannot be forced.
bool LimitThought(const ServedModel& model, const engine::AnswerOptions& answer, int64_t budget,
                  engine::GenerationRequest& request) {
  using State = engine::ReasoningSplitter::State;
  if (!answer.reasoning) return false;
  const auto token_of = [&](std::string_view mark) {
    const std::optional<TokenId> id = model.loaded().tokenizer->FindToken(mark);
    return id && *id < model.loaded().vocab_size ? *id : TokenId{-1};
  };
  engine::ThoughtLimit limit;
  limit.open = token_of(engine::kThinkOpen);
  limit.close = token_of(engine::kThinkClose);
  limit.max_tokens = budget;
  limit.is_open = answer.reasoning == State::kThinking;
  if (limit.close < 0) return false;
  request.thought_limit = limit;
  return true;
}

void NameIgnored(const MessagesRequest& messages, const std::vector<std::string>& fields,
                 const Request& request, const ResponseWriter& writer) {
  if (!fields.empty()) writer.AddHeader("x-ignored-params", IgnoredParamsHeader(fields));
  if (messages.ignored_tools.empty()) return;
  const std::string tools = IgnoredParamsHeader(messages.ignored_tools);
  writer.AddHeader("x-ignored-tools", tools);
  LogEvent(spdlog::level::info, "tools_left_out", {{"request_id", request.id}, {"tools", tools}});
}

// POST /v1/messages
void Messages(const HandlerContext& context, Request request, ResponseWriter writer) {
  const MessagesCall call = ReadCall(context, request, MessagesRoute::kMessages);
  PreparedChat chat = Translated(call.messages, [&] {
    return PrepareChat(context, *call.model,
                       ParseChatRequest(*call.messages.chat, LimitsOf(*call.model)), "msg_",
                       request.id);
  });
  auto& answer = chat.shape.answer;
  if (answer && (answer->format == nullptr || !answer->format->has_short_ids)) {
    answer->new_id = [] { return NewObjectId("toolu_"); };
  }
  std::vector<std::string> ignored = call.messages.ignored;
  const std::optional<int64_t> budget = call.messages.thinking_budget;
  if (budget && !(answer && LimitThought(*call.model, *answer, *budget, chat.requests.front()))) {
    ignored.emplace_back("thinking.budget_tokens");
  }
  for (const std::string& name : chat.ignored) {
    ignored.push_back(InMessagesTerms(name, call.messages));
  }
  // A stop string may still cut a call that a grammar holds.
  const engine::GenerationRequest& generation = chat.requests.front();
  const bool streams_calls = generation.grammar != nullptr && generation.stop.strings.empty();
  NameIgnored(call.messages, ignored, request, writer);
  Generate(context, call.model, std::move(chat.requests), std::move(chat.shape), request, writer,
           [streams_calls](ReplyShape shape,
                           const ResponseWriter& to) -> std::unique_ptr<EventRenderer> {
             return std::make_unique<MessagesRenderer>(std::move(shape), to, streams_calls);
           });
}

// POST /v1/messages/count_tokens
void CountTokens(const HandlerContext& context, Request request, ResponseWriter writer) {
  const MessagesCall call = ReadCall(context, request, MessagesRoute::kCountTokens);
  const EncodedChat encoded = Translated(call.messages, [&] {
    ChatRequest chat = ParseChatRequest(*call.messages.chat, LimitsOf(*call.model));
    PrepareTools(context, *call.model, chat.prompt);
    return EncodeChat(*call.model, chat.prompt);
  });
  NameIgnored(call.messages, call.messages.ignored, request, writer);
  std::string out = R"({"input_tokens":)";
  AppendJsonInt(out, encoded.ids.size());
  out.push_back('}');
  writer.Json(200, std::move(out));
}

}  // namespace

std::span<const Endpoint> MessagesEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {.method = "POST",
       .pattern = "/v1/messages",
       .handle = Messages,
       .is_heavy = true,
       .api = ApiKind::kAnthropic},
      {.method = "POST",
       .pattern = "/v1/messages/count_tokens",
       .handle = CountTokens,
       .api = ApiKind::kAnthropic},
  };
  return kEndpoints;
}

}  // namespace tandem::server
