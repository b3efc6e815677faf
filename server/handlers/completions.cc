#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/tokenizer.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/generate.h"
#include "server/handlers/handlers.h"
#include "server/handlers/prompt.h"
#include "server/wire/completion_request.h"

namespace tandem::server {
namespace {

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

// POST /v1/completions
void Completions(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const nlohmann::ordered_json body = ParseJsonObject(request.body);
  const auto model =
      context.models.Find(FieldReader(body).RequiredString("model"), ViewerOf(context, request));
  const CompletionRequest completion = ParseCompletionRequest(body, LimitsOf(*model));
  // Besides the model's own; not among the tokens that the client asked for.
  std::vector<TokenId> infill_ends;
  if (completion.suffix && !completion.generation.stop.ignore_end_tokens) {
    infill_ends = model->loaded().infill->ends;
  }

  ReplyShape shape = MakeReplyShape(*model, completion.generation, "cmpl-", request.id);
  shape.kind = ReplyShape::Kind::kCompletion;
  shape.end_tokens.insert(shape.end_tokens.end(), infill_ends.begin(), infill_ends.end());
  shape.n_candidates = completion.best_of;
  shape.top_logprobs = completion.top_logprobs;
  shape.echo = completion.echo;
  for (const Prompt& prompt : completion.prompts) {
    shape.prompts.push_back(EncodePrompt(*model, completion, prompt));
    CheckPromptLength(*model, shape.prompts.back().ids.size(), "prompt");
  }

  const engine::SamplingParams sampling =
      MakeSamplingParams(completion.generation, model->loaded().default_sampling);
  std::vector<engine::GenerationRequest> requests;
  for (size_t i = 0; i < shape.prompts.size(); ++i) {
    engine::GenerationRequest generation = MakeGenerationRequest(
        *model, completion.generation, sampling, shape.prompts[i].ids, completion.max_tokens);
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
    requests.push_back(std::move(generation));
  }

  Constrain(*model, completion.generation, requests, shape);
  if (!completion.ignored.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(completion.ignored));
  }
  Generate(context, model, std::move(requests), std::move(shape), request, writer);
}

}  // namespace

std::span<const Endpoint> CompletionEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"POST", "/v1/completions", Completions, Access::kApiKey, RunsOn::kRequestPool, true},
  };
  return kEndpoints;
}

}  // namespace tandem::server
