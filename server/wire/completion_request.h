#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "server/wire/generation_fields.h"

namespace tandem::server {

// A prompt of /v1/completions: text, or token ids of the vocabulary.
using Prompt = std::variant<std::string, std::vector<TokenId>>;

// POST /v1/completions, checked.
struct CompletionRequest {
  std::vector<Prompt> prompts;  // at least one
  int64_t max_tokens = 16;      // 0: scores the prompt only
  int top_logprobs = -1;        // -1: no logprobs
  bool echo = false;
  std::optional<std::string> suffix;  // text after the one to fill in; never empty
  int best_of = 1;                    // candidates per prompt; >= generation.n
  PlainPromptOptions plain_prompt;
  GenerationFields generation;
  std::vector<std::string> ignored;
};

// Reads a prompt or a list of prompts: at least 1 and at most 2,048, all text or all token ids.
// `param` names the field in errors. Texts may be empty.
std::vector<Prompt> ReadPrompts(const nlohmann::ordered_json& value, const std::string& param,
                                int64_t vocab_size);

CompletionRequest ParseCompletionRequest(const nlohmann::ordered_json& body,
                                         const ModelLimits& limits);

}  // namespace tandem::server
