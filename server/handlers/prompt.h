#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/handlers/model_registry.h"

namespace tandem::server {

struct ChatPromptInput {
  const nlohmann::ordered_json* messages = nullptr;
  const nlohmann::ordered_json* template_kwargs = nullptr;  // null: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

// The ids of a rendered chat. What clients wrote never becomes a control token; everything else is
// tokenised exactly as the rendered text would be in one piece. Throws kFailedPrecondition when the
// model has no tokenizer or no chat template, saying what to do.
std::vector<TokenId> EncodeChat(const ServedModel& model, const ChatPromptInput& input);

// The ids of a plain prompt: BOS if the model wants one (and `add_special_tokens`), then the text.
std::vector<TokenId> EncodeText(const ServedModel& model, std::string_view text,
                                bool add_special_tokens);

// Throws kInvalidArgument (context_length_exceeded) with both counts unless the prompt leaves room
// for a token. `param` is messages or prompt.
void CheckPromptLength(const ServedModel& model, size_t n_tokens, const std::string& param);

}  // namespace tandem::server
