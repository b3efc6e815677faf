#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "server/handlers/handlers.h"
#include "server/respond/event_renderer.h"
#include "server/respond/generation_reply.h"
#include "server/respond/vector_renderer.h"
#include "server/wire/generation_fields.h"

namespace tandem::server {

ModelLimits LimitsOf(const ServedModel& model);

// Fills the part of the reply's shape that follows from model and fields: id, model, end tokens,
// usage and logprob options.
ReplyShape MakeReplyShape(const ServedModel& model, const GenerationFields& fields,
                          const std::string& id_prefix, const std::string& request_id);

// Builds the engine's request for one prompt. Clamps `max_tokens` to the room left in the context.
engine::GenerationRequest MakeGenerationRequest(const ServedModel& model,
                                                const GenerationFields& fields,
                                                const engine::SamplingParams& sampling,
                                                std::vector<TokenId> prompt, int64_t max_tokens);

// Compiles what a request's field asks for. Throws kInvalidArgument (reasons unsupported_schema or
// invalid_value) with the field as param.
std::shared_ptr<const engine::Grammar> CompileStructured(const ServedModel& model,
                                                         const StructuredOutput& structured);

// Constrains the requests and their reply to the request's structured output, if it asks for one.
// Compiles the grammar on this thread, unless the model has it. Throws kInvalidArgument (reasons
// unsupported_schema or invalid_value) for a grammar that cannot be served.
void Constrain(const ServedModel& model, const GenerationFields& fields,
               std::vector<engine::GenerationRequest>& requests, ReplyShape& shape);

// Charges the request to its key, submits one engine request per prompt (in the order of
// shape.prompts) and responds through `writer`. Submits all or none: a refusal is thrown before any
// of them runs. A disconnect cancels them; a slow client pauses them.
// `make_renderer` turns the completed shape into the writer of the answer; unset: ReplyRenderer.
using MakeRenderer =
    std::function<std::unique_ptr<EventRenderer>(ReplyShape shape, const ResponseWriter& writer)>;
void Generate(const HandlerContext& context, const std::shared_ptr<const ServedModel>& model,
              std::vector<engine::GenerationRequest> requests, ReplyShape shape,
              const Request& request, const ResponseWriter& writer,
              const MakeRenderer& make_renderer = {});

// As Generate, for requests with `pooling` or `next_tokens`, one per prompt of `answer`.
void Embed(const HandlerContext& context, const std::shared_ptr<const ServedModel>& model,
           std::vector<engine::GenerationRequest> requests, VectorAnswer answer,
           const Request& request, const ResponseWriter& writer);

}  // namespace tandem::server
