#include "server/handlers/chat_answer.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/chat/answers/answer_parser.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/handlers/answer_grammar.h"
#include "server/handlers/generate.h"
#include "server/handlers/prompt.h"
#include "server/handlers/tool_formats.h"
#include "server/respond/generation_reply.h"

namespace tandem::server {
namespace {

using engine::ReasoningSplitter;

std::optional<ReasoningSplitter::State> ReasoningOf(const HandlerContext& context,
                                                    const ServedModel& model,
                                                    const ChatPrompt& prompt,
                                                    const EncodedChat& encoded) {
  const bool is_on = context.reasoning_parser == ReasoningParser::kThink ||
                     (context.reasoning_parser == ReasoningParser::kAuto &&
                      model.loaded().chat_template != nullptr &&
                      model.loaded().chat_template->Mentions(engine::kThinkOpen));
  if (!is_on) return std::nullopt;
  if (!prompt.continue_final_message) {
    return engine::StateAfterPrompt(engine::JoinPieces(encoded.pieces));
  }
  return engine::StateWithin(prompt.messages->back()["content"].get<std::string>());
}

// How to read the answer; nullopt for an answer that is text only.
std::optional<engine::AnswerOptions> AnswerOf(const HandlerContext& context,
                                              const ServedModel& model, const ChatPrompt& prompt,
                                              const EncodedChat& encoded, bool is_constrained) {
  engine::AnswerOptions answer;
  answer.reasoning = ReasoningOf(context, model, prompt, encoded);
  const engine::ToolFormat* format = ToolFormatOf(context, model);
  if (prompt.tools.callable != nullptr) {
    answer.tools =
        std::make_shared<const engine::DeclaredTools>(*prompt.tools.callable, is_constrained);
    if (!prompt.tools.is_parallel) answer.max_calls = 1;
  }
  // Harmony has channels even without tools.
  const bool has_channels = format != nullptr && format->style == engine::CallStyle::kHarmony;
  if (answer.tools != nullptr) {
    answer.format = &CallFormatOf(context, model);
  } else if (has_channels) {
    answer.format = format;
  }
  if (!answer.reasoning && answer.format == nullptr) return std::nullopt;
  const bool is_short = format != nullptr && format->has_short_ids;
  answer.new_id = [is_short] {
    return is_short ? NewObjectId("").substr(0, 9) : NewObjectId("call_");
  };
  return answer;
}

// The marks of the answer that are control tokens. They must not be skipped like other control
// tokens: the parser looks for them.
std::vector<TokenId> SpecialMarks(const ServedModel& model, engine::AnswerOptions& answer) {
  std::vector<TokenId> out;
  const engine::Tokenizer& tokenizer = *model.loaded().tokenizer;
  const auto add = [&](std::string_view mark) {
    const std::optional<TokenId> id = tokenizer.FindToken(mark);
    const bool is_special = id && tokenizer.IsSpecial(*id);
    if (is_special) out.push_back(*id);
    return is_special;
  };
  if (answer.reasoning) {
    for (const std::string_view mark : {engine::kThinkOpen, engine::kThinkClose}) add(mark);
  }
  if (answer.format == nullptr) return out;
  for (const std::string_view mark : engine::MarksOf(*answer.format)) {
    if (add(mark)) answer.token_marks.emplace_back(mark);
  }
  return out;
}

ReplyShape::PromptShape EncodePrompt(const ServedModel& model, const CompletionRequest& request,
                                     const Prompt& prompt) {
  ReplyShape::PromptShape out;
  if (request.suffix) {
    out.ids = EncodeInfill(model, prompt, *request.suffix, request.plain_prompt);
    return out;
  }
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
    out.ids = *ids;
    if (request.echo && model.loaded().tokenizer) {
      out.text =
          engine::Decode(*model.loaded().tokenizer, *ids, request.generation.skip_special_tokens);
    }
    return out;
  }
  out.text = std::get<std::string>(prompt);
  out.ids = EncodePlainPrompt(model, out.text, request.plain_prompt);
  return out;
}

}  // namespace

PreparedChat PrepareChat(const HandlerContext& context, const ServedModel& model, ChatRequest chat,
                         const std::string& id_prefix, const std::string& request_id) {
  PrepareTools(context, model, chat.prompt);
  EncodedChat encoded = chat.prompt_ids ? GivenChat(model, std::move(*chat.prompt_ids))
                                        : EncodeChat(model, chat.prompt);
  std::vector<TokenId> prompt = std::move(encoded.ids);
  CheckPromptLength(model, prompt.size(), chat.prompt_ids ? "prompt_token_ids" : "messages");

  const engine::SamplingParams sampling =
      MakeSamplingParams(chat.generation, model.loaded().default_sampling);
  PreparedChat prepared;
  ReplyShape& shape = prepared.shape;
  shape = MakeReplyShape(model, chat.generation, id_prefix, request_id);
  shape.kind = ReplyShape::Kind::kChat;
  const AnswerGrammar constraint =
      ConstrainChat(context, model, chat, ReasoningOf(context, model, chat.prompt, encoded));
  shape.answer = AnswerOf(context, model, chat.prompt, encoded, constraint.grammar != nullptr);
  if (constraint.is_text) shape.answer = std::nullopt;
  if (shape.answer) shape.shown_special_tokens = SpecialMarks(model, *shape.answer);
  shape.top_logprobs = chat.top_logprobs;
  shape.prompts.push_back({prompt, {}});
  engine::GenerationRequest generation =
      MakeGenerationRequest(model, chat.generation, sampling, std::move(prompt),
                            chat.max_tokens.value_or(std::numeric_limits<int64_t>::max()));
  generation.shared_tokens = encoded.shared_tokens;
  generation.top_logprobs = chat.top_logprobs;
  generation.shown_special_tokens = shape.shown_special_tokens;
  // Every byte of a token counts in the grammar of an answer, a leading space too.
  generation.continues_text =
      chat.prompt.continue_final_message || chat.generation.structured.has_value();
  generation.grammar = constraint.grammar;

  prepared.ignored = std::move(chat.ignored);
  prepared.ignored.insert(prepared.ignored.end(), encoded.unread.begin(), encoded.unread.end());
  prepared.ignored.insert(prepared.ignored.end(), constraint.ignored.begin(),
                          constraint.ignored.end());
  prepared.requests.push_back(std::move(generation));
  return prepared;
}

PreparedChat PrepareCompletion(const ServedModel& model, const CompletionRequest& completion,
                               const std::string& id_prefix, const std::string& request_id) {
  // Besides the model's own; not among the tokens that the client asked for.
  std::vector<TokenId> infill_ends;
  if (completion.suffix && !completion.generation.stop.ignore_end_tokens) {
    infill_ends = model.loaded().infill->ends;
  }

  PreparedChat prepared;
  ReplyShape& shape = prepared.shape;
  shape = MakeReplyShape(model, completion.generation, id_prefix, request_id);
  shape.kind = ReplyShape::Kind::kCompletion;
  shape.end_tokens.insert(shape.end_tokens.end(), infill_ends.begin(), infill_ends.end());
  shape.n_candidates = completion.best_of;
  shape.top_logprobs = completion.top_logprobs;
  shape.echo = completion.echo;
  for (const Prompt& prompt : completion.prompts) {
    shape.prompts.push_back(EncodePrompt(model, completion, prompt));
    CheckPromptLength(model, shape.prompts.back().ids.size(), "prompt");
  }

  const engine::SamplingParams sampling =
      MakeSamplingParams(completion.generation, model.loaded().default_sampling);
  for (size_t i = 0; i < shape.prompts.size(); ++i) {
    engine::GenerationRequest generation = MakeGenerationRequest(
        model, completion.generation, sampling, shape.prompts[i].ids, completion.max_tokens);
    generation.sampling.seed = SeedOfPrompt(sampling.seed, i);
    generation.n = completion.best_of;
    generation.top_logprobs = completion.top_logprobs;
    const auto* text = std::get_if<std::string>(&completion.prompts[i]);
    generation.continues_text = completion.suffix || text == nullptr || !text->empty();
    std::vector<TokenId>& ends = generation.stop.token_ids;
    ends.insert(ends.end(), infill_ends.begin(), infill_ends.end());
    // best_of ranks candidates by log-probability, even if the client wants none returned.
    if (completion.best_of > completion.generation.n) {
      generation.top_logprobs = std::max(0, generation.top_logprobs);
    }
    if (completion.echo && completion.top_logprobs >= 0) {
      generation.prompt_logprobs = std::max(generation.prompt_logprobs, completion.top_logprobs);
    }
    prepared.requests.push_back(std::move(generation));
  }

  Constrain(model, completion.generation, prepared.requests, shape);
  prepared.ignored = completion.ignored;
  return prepared;
}

}  // namespace tandem::server
