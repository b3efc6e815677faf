#pragma once

#include <memory>
#include <vector>

#include "server/handlers/handlers.h"
#include "server/respond/generation_reply.h"
#include "server/wire/generation_fields.h"

namespace tandem::server {

ModelLimits LimitsOf(const ServedModel& model);

// What of the reply follows from model and fields: id, model, end tokens, usage and logprob
// options.
ReplyShape MakeReplyShape(const ServedModel& model, const GenerationFields& fields,
                          const std::string& id_prefix, const std::string& request_id);

// The engine's side of one prompt; `max_tokens` is clamped to what the context leaves.
engine::GenerationRequest MakeGenerationRequest(const ServedModel& model,
                                                const GenerationFields& fields,
                                                const engine::SamplingParams& sampling,
                                                std::vector<TokenId> prompt, int64_t max_tokens);

// Submits one engine request per prompt (in the order of shape.prompts) and answers through
// `writer`. All or nothing: a refusal is thrown before anything runs. A client that leaves cancels
// them, a slow one pauses them.
void Generate(const HandlerContext& context, const std::shared_ptr<const ServedModel>& model,
              std::vector<engine::GenerationRequest> requests, ReplyShape shape,
              const ResponseWriter& writer);

}  // namespace tandem::server
