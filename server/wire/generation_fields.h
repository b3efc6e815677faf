#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/wire/field_reader.h"
#include "server/wire/unserved_fields.h"

namespace tandem::server {

// What of a model a request is checked against.
struct ModelLimits {
  int64_t max_model_len = 0;
  int64_t vocab_size = 0;
  bool knows_developer = false;  // its chat template tells the role "developer" from "system"
};

// The fields that chat and completions share (CONTRACT §8.1, §9). Unset means: the model's default.
struct GenerationFields {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int64_t> top_k;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> repetition_penalty;
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::optional<uint64_t> seed;
  int n = 1;
  engine::StopSpec stop;  // max_new_tokens is not set here
  std::optional<int64_t> prompt_logprobs;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  int priority = 0;
};

// Each of these reads some of them, checked, in the order of the contract's table: the first fault
// reported is the first in that table. They throw as FieldReader does.
//
// From `temperature` to `logit_bias`. `max_tokens`: the request's own limit, which min_tokens may
// not exceed.
GenerationFields ReadSamplingFields(FieldReader& reader, const ModelLimits& limits,
                                    std::optional<int64_t> max_tokens);
void ReadPromptLogprobs(FieldReader& reader, GenerationFields& fields);
// `stream` and `stream_options`.
void ReadStreamFields(FieldReader& reader, GenerationFields& fields);
// From `skip_special_tokens` to `priority`.
void ReadOutputFields(FieldReader& reader, GenerationFields& fields);
// Accepts the documented fields without effect, and refuses the fields that change an answer and
// that this server does not implement.
void ReadFieldsWithoutEffect(FieldReader& reader, GenerationRoute route);

// The model's defaults with the request's values over them. A missing seed is drawn at random.
engine::SamplingParams MakeSamplingParams(const GenerationFields& fields,
                                          const engine::SamplingParams& defaults);
// Prompt j of a list draws from its own seed; prompt 0 from the request's.
uint64_t SeedOfPrompt(uint64_t seed, size_t prompt_idx);

// Structured output is the next step of the order of work: anything but text is refused, never
// answered with free text.
void RefuseStructuredOutput(FieldReader& reader);

// `param` names the array. Every element must be an id of the vocabulary.
std::vector<TokenId> ReadTokenIds(const nlohmann::ordered_json& array, const std::string& param,
                                  int64_t vocab_size);

}  // namespace tandem::server
