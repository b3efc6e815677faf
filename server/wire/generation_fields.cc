#include "server/wire/generation_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> ReadStop(FieldReader& reader) {
  const Json* value = reader.Any("stop");
  std::vector<std::string> out;
  if (value == nullptr) return out;
  const auto add = [&](const Json& text, const std::string& param) {
    if (!text.is_string()) throw WrongType(param, "a string", text);
    out.push_back(text.get<std::string>());
    if (out.back().empty() || out.back().size() > 256) {
      throw BadValue(param,
                     param + " must have 1 to 256 bytes, got " + std::to_string(out.back().size()));
    }
  };
  if (value->is_string()) {
    add(*value, "stop");
  } else if (value->is_array()) {
    if (value->empty() || value->size() > 16) {
      throw BadValue("stop",
                     "stop must have 1 to 16 strings, got " + std::to_string(value->size()));
    }
    for (size_t i = 0; i < value->size(); ++i) {
      add((*value)[i], "stop[" + std::to_string(i) + "]");
    }
  } else {
    throw WrongType("stop", "a string or an array of strings", *value);
  }
  return out;
}

std::vector<std::pair<TokenId, float>> ReadLogitBias(FieldReader& reader,
                                                     const ModelLimits& limits) {
  std::vector<std::pair<TokenId, float>> out;
  const Json* value = reader.Object("logit_bias");
  if (value == nullptr) return out;
  if (value->size() > 1024) {
    throw BadValue("logit_bias", "logit_bias must have at most 1024 entries, got " +
                                     std::to_string(value->size()));
  }
  for (const auto& [key, bias] : value->items()) {
    TokenId id = -1;
    const auto [end, fault] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (fault != std::errc() || end != key.data() + key.size() || id < 0 ||
        id >= limits.vocab_size) {
      throw BadValue("logit_bias", "logit_bias keys must be token ids in [0, " +
                                       std::to_string(limits.vocab_size - 1) + "], got " +
                                       ShortForm(Json(key)));
    }
    if (!bias.is_number()) {
      throw WrongType("logit_bias", "an object of numbers in [-100, 100]", bias);
    }
    const auto number = bias.get<double>();
    if (!(number >= -100 && number <= 100)) {
      throw BadValue("logit_bias",
                     "logit_bias values must be in [-100, 100], got " + ShortForm(bias));
    }
    out.emplace_back(id, static_cast<float>(number));
  }
  return out;
}

std::optional<double> ReadSamplingField(FieldReader& reader, const engine::SamplingField& field) {
  const std::optional<double> value = reader.Number(field.name, field.min, field.max);
  if (field.is_positive && value && *value <= 0) {
    throw BadValue(field.name, std::string(field.name) + " must be greater than 0, got 0");
  }
  return value;
}

void ReadSampling(FieldReader& reader, bool penalties, GenerationFields& fields) {
  for (size_t i = 0; i < fields.sampling.size(); ++i) {
    const engine::SamplingField& field = engine::kSamplingFields[i];
    if (field.is_penalty == penalties) fields.sampling[i] = ReadSamplingField(reader, field);
  }
}

}  // namespace

std::vector<TokenId> ReadTokenIds(const Json& array, const std::string& param, int64_t vocab_size) {
  std::vector<TokenId> out;
  out.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    const Json& value = array[i];
    const double number = value.is_number() ? value.get<double>() : -1;
    if (!value.is_number() || number < 0 || number >= static_cast<double>(vocab_size) ||
        number != static_cast<double>(static_cast<int64_t>(number))) {
      const std::string element = param + "[" + std::to_string(i) + "]";
      throw BadValue(element, element + " must be a token id in [0, " +
                                  std::to_string(vocab_size - 1) + "], got " + ShortForm(value));
    }
    out.push_back(static_cast<TokenId>(number));
  }
  return out;
}

GenerationFields ReadSamplingFields(FieldReader& reader, const ModelLimits& limits,
                                    std::optional<int64_t> max_tokens) {
  GenerationFields fields;
  ReadSampling(reader, /*penalties=*/false, fields);
  fields.top_k = reader.Int("top_k", -1, std::numeric_limits<int64_t>::max());
  fields.n = static_cast<int>(reader.Int("n", 1, 128).value_or(1));
  if (const auto seed = reader.Int("seed", std::numeric_limits<int64_t>::min(),
                                   std::numeric_limits<int64_t>::max())) {
    fields.seed = static_cast<uint64_t>(*seed);
  }
  fields.stop.strings = ReadStop(reader);
  if (const Json* ids = reader.Array("stop_token_ids")) {
    if (ids->size() > 64) {
      throw BadValue("stop_token_ids",
                     "stop_token_ids must have at most 64 ids, got " + std::to_string(ids->size()));
    }
    fields.stop.token_ids = ReadTokenIds(*ids, "stop_token_ids", limits.vocab_size);
  }
  fields.stop.include_stop_string = reader.Bool("include_stop_str_in_output").value_or(false);
  fields.stop.ignore_end_tokens = reader.Bool("ignore_eos").value_or(false);
  fields.stop.min_new_tokens =
      reader.Int("min_tokens", 0, max_tokens.value_or(limits.max_model_len)).value_or(0);
  ReadSampling(reader, /*penalties=*/true, fields);
  fields.logit_bias = ReadLogitBias(reader, limits);
  return fields;
}

void ReadStreamFields(FieldReader& reader, GenerationFields& fields) {
  fields.stream = reader.Bool("stream").value_or(false);
  const Json* options = reader.Object("stream_options");
  if (options == nullptr) return;
  if (!fields.stream) {
    throw BadValue("stream_options", "stream_options needs stream: true");
  }
  FieldReader members(*options, "stream_options");
  fields.include_usage = members.Bool("include_usage").value_or(false);
  fields.continuous_usage = members.Bool("continuous_usage_stats").value_or(false);
}

void ReadPromptLogprobs(FieldReader& reader, GenerationFields& fields) {
  fields.prompt_logprobs = reader.Int("prompt_logprobs", 0, 20);
}

void ReadOutputFields(FieldReader& reader, GenerationFields& fields) {
  fields.skip_special_tokens = reader.Bool("skip_special_tokens").value_or(true);
  fields.return_token_ids = reader.Bool("return_token_ids").value_or(false);
  fields.return_tokens_as_token_ids = reader.Bool("return_tokens_as_token_ids").value_or(false);
  fields.priority = ReadPriority(reader);
}

void ReadPrediction(FieldReader& reader, GenerationFields& fields) {
  const Json* prediction = reader.Object("prediction");
  if (prediction == nullptr) return;
  FieldReader members(*prediction, "prediction");
  if (members.RequiredString("type") != "content") {
    throw BadValue("prediction.type", "prediction.type must be \"content\"");
  }
  const auto refuse = [] {
    return BadValue(
        "prediction.content",
        "prediction.content must be a string or an array of {\"type\": \"text\"} parts");
  };
  const Json* content = members.Any("content");
  if (content == nullptr) throw refuse();
  if (content->is_string()) {
    fields.prediction = content->get<std::string>();
    return;
  }
  if (!content->is_array()) throw refuse();
  for (const Json& part : *content) {
    if (!part.is_object() || !part.contains("text") || !part["text"].is_string() ||
        part.value("type", Json()) != "text") {
      throw refuse();
    }
    fields.prediction += part["text"].get_ref<const std::string&>();
  }
}

int ReadPriority(FieldReader& reader) {
  const int64_t priority =
      reader
          .Int("priority", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max())
          .value_or(0);
  return static_cast<int>(std::clamp<int64_t>(priority, std::numeric_limits<int32_t>::min(),
                                              std::numeric_limits<int32_t>::max()));
}

PlainPromptOptions ReadPlainPromptOptions(FieldReader& reader) {
  PlainPromptOptions options;
  options.add_special_tokens = reader.Bool("add_special_tokens").value_or(true);
  options.parse_special = reader.Bool("parse_special").value_or(false);
  return options;
}

void ReadFieldsWithoutEffect(FieldReader& reader, GenerationRoute route) {
  reader.Accept({"metadata", "store", "user", "safety_identifier", "service_tier", "verbosity",
                 "prompt_cache_key", "prompt_cache_retention"});
  RefuseUnservedFields(reader, route);
  if (const Json* modalities = reader.Any("modalities")) {
    if (*modalities != Json::array({"text"})) {
      throw UnsupportedField("modalities", "modalities must be [\"text\"]");
    }
  }
}

engine::SamplingParams MakeSamplingParams(const GenerationFields& fields,
                                          const engine::SamplingParams& defaults) {
  engine::SamplingParams out = defaults;
  for (size_t i = 0; i < fields.sampling.size(); ++i) {
    if (fields.sampling[i]) {
      out.*engine::kSamplingFields[i].value = static_cast<float>(*fields.sampling[i]);
    }
  }
  if (fields.top_k) {
    out.top_k =
        static_cast<int32_t>(std::min<int64_t>(*fields.top_k, std::numeric_limits<int32_t>::max()));
  }
  out.logit_bias = fields.logit_bias;
  if (fields.seed) {
    out.seed = *fields.seed;
  } else {
    thread_local std::random_device device;
    out.seed = (static_cast<uint64_t>(device()) << 32) | device();
  }
  return out;
}

uint64_t SeedOfPrompt(uint64_t seed, size_t prompt_idx) {
  if (prompt_idx == 0) return seed;
  // SplitMix64: neighbouring seeds and prompts must not give related streams.
  uint64_t x = seed + 0x9e3779b97f4a7c15ULL * prompt_idx;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace tandem::server
