#include "server/handlers/generate.h"

#include <algorithm>

#include "engine/base/attempt.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/unix_time.h"
#include "engine/chat/chat_template.h"
#include "engine/constrain/grammar.h"
#include "engine/io/fnv1a.h"
#include "server/admission/generation_tally.h"
#include "server/wire/field_reader.h"

namespace tandem::server {

ModelLimits LimitsOf(const ServedModel& model) {
  const engine::LoadedModel& loaded = model.loaded();
  const bool knows_developer = loaded.chat_template && loaded.chat_template->Mentions("developer");
  return {loaded.max_model_len, loaded.vocab_size, knows_developer, loaded.infill.has_value()};
}

ReplyShape MakeReplyShape(const ServedModel& model, const GenerationFields& fields,
                          const std::string& id_prefix, const std::string& request_id) {
  ReplyShape shape;
  shape.id = NewObjectId(id_prefix);
  shape.created = UnixNow();
  shape.model = model.id;
  shape.fingerprint = model.adapter ? model.fingerprint : model.loaded().fingerprint;
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
  request.adapter = model.adapter;
  if (model.adapter) request.adapter_name = model.id;
  request.sampling = sampling;
  request.stop = fields.stop;
  request.stop.max_new_tokens = std::min(max_tokens, room);
  request.stop.min_new_tokens = std::min(fields.stop.min_new_tokens, request.stop.max_new_tokens);
  request.n = fields.n;
  if (fields.prompt_logprobs) request.prompt_logprobs = static_cast<int>(*fields.prompt_logprobs);
  request.skip_special_tokens = fields.skip_special_tokens;
  request.priority = fields.priority;
  if (!fields.prediction.empty()) {
    request.prediction =
        model.loaded().tokenizer->Encode(fields.prediction, engine::SpecialTokens::kPlainText);
    const auto most = static_cast<size_t>(std::max<int64_t>(0, request.stop.max_new_tokens));
    if (request.prediction.size() > most) request.prediction.resize(most);
  }
  return request;
}

std::shared_ptr<const engine::Grammar> CompileStructured(const ServedModel& model,
                                                         const StructuredOutput& structured) {
  const bool is_schema = structured.source.kind == engine::GrammarSource::Kind::kJsonSchema;
  const auto explain = [&](const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) {
      return Error(error.code(), error.what()).WithParam(structured.param);
    }
    return Error(error.code(), structured.param + " cannot be served: " + error.what())
        .WithParam(structured.param)
        .WithReason(is_schema ? "unsupported_schema" : "invalid_value");
  };
  return WithContext(explain, [&] { return model.loaded().grammars->Compile(structured.source); });
}

void Constrain(const ServedModel& model, const GenerationFields& fields,
               std::vector<engine::GenerationRequest>& requests, ReplyShape& shape) {
  if (!fields.structured) return;
  const auto grammar = CompileStructured(model, *fields.structured);
  for (engine::GenerationRequest& request : requests) {
    request.grammar = grammar;
    // Every byte of a token counts in the grammar, a leading space too.
    request.continues_text = true;
  }
  // The whole answer is the constrained text.
  shape.answer = std::nullopt;
}

namespace {

GenerationTally::About AboutOf(const ServedModel& model,
                               const std::vector<engine::GenerationRequest>& requests,
                               uint64_t client) {
  GenerationTally::About about;
  about.model = model.id;
  about.client = client;
  about.n_prompts = static_cast<int64_t>(requests.size());
  for (const engine::GenerationRequest& one : requests) {
    const auto prompt_tokens = static_cast<int64_t>(one.prompt.size());
    about.prompt_tokens += prompt_tokens;
    about.charged_tokens += prompt_tokens + one.n * one.stop.max_new_tokens;
  }
  return about;
}

// Names the beginning of a prompt, for routers: requests with the same key share cached prefixes,
// and the turns of a conversation keep theirs. Tokens, so that every API gives the same key.
std::string PrefixKey(const ServedModel& model, const engine::GenerationRequest& request) {
  constexpr size_t kTokens = 64;
  engine::Fnv1a hash;
  hash.AddBytes(model.id);
  hash.Add(request.prefix_tenant);
  const size_t n = std::min(kTokens, request.prompt.size());
  for (size_t i = 0; i < n; ++i) hash.Add(static_cast<uint64_t>(request.prompt[i]));
  std::string key(16, '0');
  for (size_t i = 0; i < key.size(); ++i)
    key[i] = "0123456789abcdef"[hash.value() >> (60 - 4 * i) & 15];
  return key;
}

// Moves the request from its admission slot to the engine's queue, all prompts or none. Holds
// Admission's lock meanwhile, so the work here must not grow with the prompt's length.
std::vector<RequestId> Submit(const HandlerContext& context, engine::Engine& engine,
                              std::vector<engine::GenerationRequest> requests,
                              std::vector<engine::EventSink> sinks, const Request& request,
                              const ResponseWriter& writer) {
  std::vector<RequestId> ids;
  const auto submit = [&] {
    ids = engine.SubmitAll(std::move(requests), std::move(sinks),
                           context.admission->ShareOf(request.client));
  };
  const auto refused = ErrorOf({ErrorCode::kUnavailable, ErrorCode::kResourceExhausted}, [&] {
    if (request.admission) {
      request.admission->Redeem(submit);
    } else {
      submit();
    }
  });
  if (refused) {
    context.admission->AddRetryAfter(writer);
    throw Error(*refused);
  }
  return ids;
}

// Makes the reply of a request. The reply calls `on_prompt_end` when a prompt has ended.
using MakeReply = std::function<std::shared_ptr<GenerationReply>(
    std::function<void(std::string_view reason)> on_prompt_end)>;

void Run(const HandlerContext& context, const std::shared_ptr<const ServedModel>& model,
         std::vector<engine::GenerationRequest> requests, const MakeReply& make_reply,
         const Request& request, const ResponseWriter& writer) {
  for (const engine::GenerationRequest& one : requests) model->engine->Check(one);
  GenerationTally::About about = AboutOf(*model, requests, request.client);
  const int64_t charged_tokens = about.charged_tokens;
  // The sinks and the reply keep the writer alive. The tally holds it weakly.
  const auto kept_writer = std::make_shared<const ResponseWriter>(writer);
  const auto tally = std::make_shared<GenerationTally>(
      std::move(about), kept_writer, *context.admission, context.metrics->EndsOf(model->id));
  const std::shared_ptr<GenerationReply> reply =
      make_reply([tally, kept_writer](std::string_view reason) { tally->OnPromptEnd(reason); });
  // Weak: sinks die on the engine's thread, and an engine must not be destroyed there.
  const auto for_each = [engine = std::weak_ptr<engine::Engine>(model->engine)](
                            const std::vector<RequestId>& of, auto&& action) {
    if (const auto alive = engine.lock()) {
      for (const RequestId id : of) action(*alive, id);
    }
  };
  std::vector<engine::EventSink> sinks;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].client = request.client;
    requests[i].prefix_tenant = context.share_prefix_cache ? 0 : request.client;
    requests[i].arrival = request.received;
    if (request.is_batch_line) {
      // The batch has its own deadline, and its lines give way to other requests.
      requests[i].work_class = WorkClass::kBatch;
    } else if (context.request_timeout.count() > 0) {
      requests[i].deadline = request.received + context.request_timeout;
    }
    if (!request.is_batch_line && context.queue_timeout.count() > 0) {
      requests[i].queue_deadline = request.received + context.queue_timeout;
    }
    sinks.push_back(
        [tally, kept_writer, answer = reply->Sink(i)](RequestId id, engine::GenerationEvent event) {
          // Out of memory: close the connection, because an answer with a gap would be wrong.
          const bool is_passed_on = HasMemoryFor([&] {
            tally->OnEvent(event);
            answer(id, std::move(event));
          });
          if (!is_passed_on) kept_writer->GiveUp();
        });
  }
  if (!requests.empty()) writer.AddHeader("x-prefix-key", PrefixKey(*model, requests[0]));
  context.admission->ChargeTokens(request.client, charged_tokens, writer);
  const std::vector<RequestId> ids = UndoOnFailure(
      [&] {
        return Submit(context, *model->engine, std::move(requests), std::move(sinks), request,
                      writer);
      },
      [&] { context.admission->CorrectTokens(request.client, charged_tokens, 0); });
  UndoOnFailure(
      [&] {
        const auto cancel = [for_each, ids] {
          for_each(ids, [](engine::Engine& engine, RequestId id) { engine.Cancel(id); });
        };
        writer.OnDisconnect([cancel, tally] {
          tally->OnDisconnect();
          cancel();
        });
        reply->Begin(cancel, [for_each, ids](bool paused) {
          for_each(ids,
                   [&](engine::Engine& engine, RequestId id) { engine.SetPaused(id, paused); });
        });
      },
      // The answer has no reader. The tally corrects the charge when the last prompt has ended.
      [&] {
        HasMemoryFor([&] { tally->OnDisconnect(); });
        for_each(ids, [](engine::Engine& engine, RequestId id) {
          HasMemoryFor([&] { engine.Cancel(id); });
        });
      });
}

}  // namespace

void Generate(const HandlerContext& context, const std::shared_ptr<const ServedModel>& model,
              std::vector<engine::GenerationRequest> requests, ReplyShape shape,
              const Request& request, const ResponseWriter& writer,
              const MakeRenderer& make_renderer) {
  shape.begins_late = context.queue_timeout.count() > 0;
  shape.keeps_alive = model;
  for (size_t i = 0; i < requests.size(); ++i) {
    shape.prompts[i].continues_text = requests[i].continues_text;
  }
  const auto make_reply = [&](std::function<void(std::string_view)> on_prompt_end) {
    shape.on_prompt_end = std::move(on_prompt_end);
    if (!make_renderer) return GenerationReply::Create(std::move(shape), writer);
    return GenerationReply::Create(make_renderer(std::move(shape), writer), writer);
  };
  Run(context, model, std::move(requests), make_reply, request, writer);
}

void Embed(const HandlerContext& context, const std::shared_ptr<const ServedModel>& model,
           std::vector<engine::GenerationRequest> requests, VectorAnswer answer,
           const Request& request, const ResponseWriter& writer) {
  answer.request_id = request.id;
  answer.keeps_alive = model;
  const auto make_reply = [&](std::function<void(std::string_view)> on_prompt_end) {
    answer.on_prompt_end = std::move(on_prompt_end);
    return GenerationReply::Create(std::make_unique<VectorRenderer>(std::move(answer), writer),
                                   writer);
  };
  Run(context, model, std::move(requests), make_reply, request, writer);
}

}  // namespace tandem::server
