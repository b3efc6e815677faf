#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {

// Encodes a plain text as a prompt, with BOS first if the model wants one and `add_special_tokens`
// is set. Control tokens spelled in the text stay text unless `special` parses them. Throws
// kFailedPrecondition when the model has no tokenizer.
std::vector<TokenId> EncodePrompt(const LoadedModel& model, std::string_view text,
                                  bool add_special_tokens = true,
                                  SpecialTokens special = SpecialTokens::kPlainText);

// Runs one request and waits for its end. Calls `take` on the calling thread, in order, with every
// piece of the answer as soon as it exists. An exception from `take` cancels the request and leaves
// this function. Returns the end of each choice, by number. Throws what Engine::Submit throws, and
// an Error with the code, message and reason of a request that failed. Any thread may call this.
std::vector<ChoiceFinished> Generate(Engine& engine, GenerationRequest request,
                                     const std::function<void(const TextDelta&)>& take = {});

}  // namespace tandem::engine
