#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/models/model_registry.h"
#include "server/wire/completion_request.h"

namespace tandem::server {

// The tokens of one input. A text gets the tokens that the model's tokenizer puts around texts;
// control tokens spelled in it stay text. Token ids stay as they are. Throws kInvalidArgument
// naming `param` for an input without tokens, or longer than the model's context
// (context_length_exceeded).
std::vector<TokenId> EncodeInput(const ServedModel& model, const Prompt& input,
                                 const std::string& param);

// Throws kInvalidArgument (context_length_exceeded) with both counts if an input of `n_tokens`
// tokens exceeds `most`.
void CheckInputLength(const ServedModel& model, size_t n_tokens, int64_t most,
                      const std::string& param);

// The request's pooling, else the model's. Throws kFailedPrecondition if the request names none and
// the model's own pooling is not supported.
engine::Pooling PoolingOf(const ServedModel& model, std::optional<engine::Pooling> requested);

// An engine request that generates nothing.
engine::GenerationRequest MakeReadingRequest(const ServedModel& model, std::vector<TokenId> input,
                                             int priority);
// The engine's request for the embedding of one input.
engine::GenerationRequest MakePooledRequest(const ServedModel& model, std::vector<TokenId> input,
                                            engine::Pooling pooling, int priority);

}  // namespace tandem::server
