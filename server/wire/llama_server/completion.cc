#include "server/wire/llama_server/completion.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

// llama-server writes its random seed as the largest number of 32 bits.
constexpr int64_t kRandomSeed = std::numeric_limits<uint32_t>::max();

// Fields of llama-server without a meaning here. /v1/completions refuses some of them.
constexpr const char* kTuning[] = {"samplers", "t_max_predict_ms", "t_max_prompt_ms",
                                   "input_extra"};

// Fields that the functions below read. All others go to ParseCompletionRequest as they are.
constexpr std::string_view kTranslated[] = {"prompt",
                                            "n_predict",
                                            "max_tokens",
                                            "repeat_penalty",
                                            "repeat_last_n",
                                            "seed",
                                            "stop",
                                            "logit_bias",
                                            "n_probs",
                                            "return_tokens",
                                            "cache_prompt",
                                            "min_keep",
                                            "input_prefix",
                                            "input_suffix",
                                            "id_slot",
                                            "n_cmpl",
                                            "n",
                                            "logprobs",
                                            "post_sampling_probs"};

bool IsTranslated(const std::string& name) {
  return std::find(std::begin(kTranslated), std::end(kTranslated), name) != std::end(kTranslated) ||
         std::find(std::begin(kTuning), std::end(kTuning), name) != std::end(kTuning);
}

// A text or one list of token ids.
Json OnePrompt(const Json& prompt) {
  if (prompt.is_string()) return prompt;
  if (!prompt.is_array()) throw WrongType("prompt", "a string or an array of token ids", prompt);
  if (prompt.size() == 1 && (prompt[0].is_string() || prompt[0].is_array())) return prompt[0];
  const bool is_ids = std::all_of(prompt.begin(), prompt.end(),
                                  [](const Json& element) { return element.is_number(); });
  if (is_ids) return prompt;
  throw Error(ErrorCode::kUnsupported,
              "prompt must be one text or one list of token ids here: send several prompts to "
              "/v1/completions, and mixed ones as token ids")
      .WithParam("prompt")
      .WithReason("unsupported_value");
}

void ReadInfill(FieldReader& reader, Json& body) {
  const std::string prefix = reader.String("input_prefix").value_or("");
  const std::string suffix = reader.String("input_suffix").value_or("");
  body["prompt"] = prefix + reader.String("prompt").value_or("");
  if (!suffix.empty()) body["suffix"] = suffix;
}

// [[id, bias], [id, false]] as the object that /v1/completions takes. Objects pass.
void ReadLlamaServerBias(FieldReader& reader, Json& body) {
  const Json* given = reader.Any("logit_bias");
  if (given == nullptr || *given == Json::array()) return;
  if (given->is_object()) {
    body["logit_bias"] = *given;
    return;
  }
  if (!given->is_array()) throw WrongType("logit_bias", "a list of pairs, or an object", *given);
  std::set<std::string> seen;
  Json& out = body["logit_bias"];
  out = Json::object();
  for (size_t i = 0; i < given->size(); ++i) {
    const Json& pair = (*given)[i];
    const std::string path = "logit_bias[" + std::to_string(i) + "]";
    const bool is_pair = pair.is_array() && pair.size() == 2 && pair[0].is_number_integer() &&
                         (pair[1].is_number() || pair[1] == Json(false));
    if (!is_pair) {
      throw BadValue(path,
                     path + " must be a token id with its bias or false, got " + ShortForm(pair));
    }
    std::string id = pair[0].dump();
    if (!seen.insert(id).second) throw BadValue(path, path + " repeats token " + id);
    // Appends without a search for an equal key.
    out.get_ref<Json::object_t&>().emplace_back(std::move(id),
                                                pair[1].is_number() ? pair[1] : Json(-100));
  }
}

void ReadLlamaServerSampling(FieldReader& reader, const ModelLimits& limits, Json& body) {
  auto n_predict = reader.Int("n_predict", -2, std::numeric_limits<int64_t>::max());
  const auto max_tokens = reader.Int("max_tokens", -2, std::numeric_limits<int64_t>::max());
  if (!n_predict) n_predict = max_tokens;
  const bool is_bounded = n_predict && *n_predict >= 0;
  body["max_tokens"] =
      is_bounded ? std::min(*n_predict, limits.max_model_len) : limits.max_model_len;
  const auto repeat = reader.Number("repeat_penalty", 0.01, 10);
  const bool has_window = reader.Int("repeat_last_n", -1, limits.max_model_len).value_or(-1) != 0;
  if (repeat && has_window) body["repetition_penalty"] = *repeat;
  const auto seed =
      reader.Int("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  if (seed && *seed != -1 && *seed != kRandomSeed) body["seed"] = *seed;
  const Json* stop = reader.Any("stop");
  if (stop != nullptr && *stop != Json::array()) body["stop"] = *stop;
  ReadLlamaServerBias(reader, body);
}

void ReadProbabilities(FieldReader& reader, Json& body) {
  const int64_t n_probs = reader.Int("n_probs", 0, 20).value_or(0);
  const bool after_sampling = reader.Bool("post_sampling_probs").value_or(false);
  if (n_probs == 0) return;
  if (after_sampling) {
    throw UnsupportedField("post_sampling_probs",
                           "post_sampling_probs is not supported: n_probs gives the probabilities "
                           "before sampling");
  }
  body["logprobs"] = n_probs;
}

}  // namespace

LlamaServerCompletion ParseLlamaServerCompletion(const Json& body, LlamaServerRoute route,
                                                 const ModelLimits& limits) {
  FieldReader reader(body);
  Json out = Json::object();
  if (route == LlamaServerRoute::kInfill) {
    ReadInfill(reader, out);
  } else {
    const Json* prompt = reader.Any("prompt");
    if (prompt == nullptr) throw MissingField("prompt");
    out["prompt"] = OnePrompt(*prompt);
  }
  ReadLlamaServerSampling(reader, limits, out);
  ReadProbabilities(reader, out);
  for (const char* count : {"n_cmpl", "n"}) {
    if (reader.Int(count, 1, 1 << 20).value_or(1) == 1) continue;
    throw UnsupportedField(count, std::string(count) +
                                      " is not supported here: use n of "
                                      "/v1/completions");
  }
  LlamaServerCompletion parsed;
  parsed.returns_tokens = reader.Bool("return_tokens").value_or(false);
  reader.Accept({"cache_prompt", "id_slot", "min_keep", "logprobs"});
  for (const auto& [name, value] : body.items()) {
    if (!IsTranslated(name)) out.get_ref<Json::object_t&>().emplace_back(name, value);
  }
  parsed.completion = ParseCompletionRequest(out, limits);
  for (const char* name : kTuning) {
    if (body.contains(name)) parsed.completion.ignored.emplace_back(name);
  }
  return parsed;
}

}  // namespace tandem::server
