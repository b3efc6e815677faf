#include "server/handlers/generate.h"

#include <algorithm>
#include <chrono>

#include "engine/chat/chat_template.h"
#include "server/wire/field_reader.h"

namespace tandem::server {

ModelLimits LimitsOf(const ServedModel& model) {
  const engine::LoadedModel& loaded = model.loaded();
  const bool knows_developer = loaded.chat_template && loaded.chat_template->Mentions("developer");
  return {loaded.max_model_len, loaded.vocab_size, knows_developer};
}

ReplyShape MakeReplyShape(const ServedModel& model, const GenerationFields& fields,
                          const std::string& id_prefix, const std::string& request_id) {
  ReplyShape shape;
  shape.id = NewObjectId(id_prefix);
  shape.created = std::chrono::duration_cast<std::chrono::seconds>(
                      std::chrono::system_clock::now().time_since_epoch())
                      .count();
  shape.model = model.id;
  shape.fingerprint = model.loaded().fingerprint;
  if (!shape.fingerprint.starts_with("fp_")) shape.fingerprint.insert(0, "fp_");
  shape.request_id = request_id;
  shape.stream = fields.stream;
  shape.include_usage = fields.include_usage;
  shape.continuous_usage = fields.continuous_usage;
  shape.n = fields.n;
  shape.n_candidates = fields.n;
  if (fields.prompt_logprobs) shape.prompt_logprobs = static_cast<int>(*fields.prompt_logprobs);
  shape.skip_special_tokens = fields.skip_special_tokens;
  shape.return_token_ids = fields.return_token_ids;
  shape.return_tokens_as_token_ids = fields.return_tokens_as_token_ids;
  shape.asked_end_tokens = fields.stop.token_ids;
  shape.end_tokens = fields.stop.token_ids;
  if (!fields.stop.ignore_end_tokens) {
    const auto& model_end = model.loaded().end_tokens;
    shape.end_tokens.insert(shape.end_tokens.end(), model_end.begin(), model_end.end());
  }
  shape.tokenizer = model.loaded().tokenizer;
  return shape;
}

engine::GenerationRequest MakeGenerationRequest(const ServedModel& model,
                                                const GenerationFields& fields,
                                                const engine::SamplingParams& sampling,
                                                std::vector<TokenId> prompt, int64_t max_tokens) {
  engine::GenerationRequest request;
  const int64_t room = model.loaded().max_model_len - static_cast<int64_t>(prompt.size());
  request.prompt = std::move(prompt);
  request.sampling = sampling;
  request.stop = fields.stop;
  request.stop.max_new_tokens = std::min(max_tokens, room);
  request.stop.min_new_tokens = std::min(fields.stop.min_new_tokens, request.stop.max_new_tokens);
  request.n = fields.n;
  if (fields.prompt_logprobs) request.prompt_logprobs = static_cast<int>(*fields.prompt_logprobs);
  request.skip_special_tokens = fields.skip_special_tokens;
  request.priority = fields.priority;
  return request;
}

void Generate(const HandlerContext& context, const std::shared_ptr<const ServedModel>& model,
              std::vector<engine::GenerationRequest> requests, ReplyShape shape,
              const ResponseWriter& writer) {
  shape.keeps_alive = model;
  const std::shared_ptr<GenerationReply> reply = GenerationReply::Create(std::move(shape), writer);
  // Weak: a sink must not be what keeps an engine alive, for it dies on the engine's own thread.
  const auto for_each = [engine = std::weak_ptr<engine::Engine>(model->engine)](
                            const std::vector<RequestId>& of, auto&& action) {
    if (const auto alive = engine.lock()) {
      for (const RequestId id : of) action(*alive, id);
    }
  };
  std::vector<engine::EventSink> sinks;
  for (size_t i = 0; i < requests.size(); ++i) {
    sinks.push_back(reply->Sink(i));
    if (context.request_timeout.count() > 0) {
      requests[i].deadline = std::chrono::steady_clock::now() + context.request_timeout;
    }
  }
  const std::vector<RequestId> ids =
      model->engine->SubmitAll(std::move(requests), std::move(sinks));
  const auto cancel = [for_each, ids] {
    for_each(ids, [](engine::Engine& engine, RequestId id) { engine.Cancel(id); });
  };
  writer.OnDisconnect(cancel);
  reply->Begin(cancel, [for_each, ids](bool paused) {
    for_each(ids, [&](engine::Engine& engine, RequestId id) { engine.SetPaused(id, paused); });
  });
}

}  // namespace tandem::server
