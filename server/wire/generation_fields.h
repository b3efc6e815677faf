#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/wire/field_reader.h"
#include "server/wire/structured_output.h"
#include "server/wire/unserved_fields.h"

namespace tandem::server {

// Properties of a model that bound a request.
struct ModelLimits {
  int64_t max_model_len = 0;
  int64_t vocab_size = 0;
  bool knows_developer = false;  // the chat template distinguishes the roles "developer" and
                                 // "system"
  bool fills_in = false;         // the model has tokens for `suffix` of completions
};

// The fields that chat and completions share. Unset means the model's default.
struct GenerationFields {
  // The given values of kSamplingFields, in its order.
  std::array<std::optional<double>, std::size(engine::kSamplingFields)> sampling;
  std::optional<int64_t> top_k;
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::optional<uint64_t> seed;
  int n = 1;
  engine::StopSpec stop;  // without max_new_tokens
  std::optional<int64_t> prompt_logprobs;
  std::optional<StructuredOutput> structured;  // unset: any text
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  int priority = 0;
  std::string prediction;  // a guess of the answer's text; empty: none
};

// How a plain prompt becomes tokens.
struct PlainPromptOptions {
  bool add_special_tokens = true;  // BOS first, if the model wants one
  bool parse_special = false;      // control tokens that the text spells become tokens
};

// Each function reads and checks some fields. The parsers call them in a fixed order, so that a
// request with several faults always reports the same one. They throw as FieldReader does.
//
// From `temperature` to `logit_bias`. `max_tokens` is the request's own limit, an upper bound of
// min_tokens.
GenerationFields ReadSamplingFields(FieldReader& reader, const ModelLimits& limits,
                                    std::optional<int64_t> max_tokens);
void ReadPromptLogprobs(FieldReader& reader, GenerationFields& fields);
// `stream` and `stream_options`.
void ReadStreamFields(FieldReader& reader, GenerationFields& fields);
// From `skip_special_tokens` to `priority`.
void ReadOutputFields(FieldReader& reader, GenerationFields& fields);
// OpenAI's `prediction` of {"type": "content"}: its text.
void ReadPrediction(FieldReader& reader, GenerationFields& fields);
// `priority`: any integer; clamped to 32 bits. 0 if absent.
int ReadPriority(FieldReader& reader);
PlainPromptOptions ReadPlainPromptOptions(FieldReader& reader);
// Accepts the documented fields without effect. Refuses the fields that change an answer and that
// this server does not implement.
void ReadFieldsWithoutEffect(FieldReader& reader, GenerationRoute route);

// The model's defaults, overridden by the request's values. A missing seed is random.
engine::SamplingParams MakeSamplingParams(const GenerationFields& fields,
                                          const engine::SamplingParams& defaults);
// The seed of prompt j of a list; prompt 0 uses the request's own.
uint64_t SeedOfPrompt(uint64_t seed, size_t prompt_idx);

// `param` names the array in errors. Every element must be an id of the vocabulary.
std::vector<TokenId> ReadTokenIds(const nlohmann::ordered_json& array, const std::string& param,
                                  int64_t vocab_size);

}  // namespace tandem::server
