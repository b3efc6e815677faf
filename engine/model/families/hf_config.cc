#include "engine/model/families/hf_config.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "engine/base/check.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// Enough for any model; keeps a hostile list from becoming work in every decoding step.
constexpr size_t kMaxTokenList = 64;

const Json* FindObject(const Json& config, const char* field, const std::string& source) {
  const auto found = config.find(field);
  if (found == config.end() || found->is_null()) return nullptr;
  if (!found->is_object()) {
    throw Error(ErrorCode::kDataLoss, source + ": field '" + field +
                                          "' must be an object or null, got " + found->type_name());
  }
  return &*found;
}

double RequiredNumber(const Json& object, const char* field, double min, double max,
                      const std::string& source) {
  const auto found = object.find(field);
  if (found == object.end() || found->is_null()) {
    throw Error(ErrorCode::kDataLoss, source + ": field '" + field + "' is missing");
  }
  return JsonNumberOr(object, field, min, min, max, source);
}

RopeScaling ParseScaling(const Json& object, const std::string& source) {
  // "type" is the key of transformers before 4.43.
  const std::string type =
      JsonStringOr(object, "rope_type", JsonStringOr(object, "type", "default", source), source);
  RopeScaling scaling;
  if (type == "default") return scaling;
  if (type != "llama3") {
    ThrowUnsupported(source, "rope type '" + type + "'; supported are 'default' and 'llama3'");
  }
  scaling.factor = RequiredNumber(object, "factor", 1, 1e6, source);
  scaling.low_freq_factor = RequiredNumber(object, "low_freq_factor", 1e-6, 1e6, source);
  scaling.high_freq_factor = RequiredNumber(object, "high_freq_factor", 1e-6, 1e6, source);
  scaling.original_max_positions =
      JsonInt(object, "original_max_position_embeddings", 1, kMaxContext, source);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'high_freq_factor' must be above " +
                                          std::to_string(scaling.low_freq_factor) +
                                          " ('low_freq_factor'), got " +
                                          std::to_string(scaling.high_freq_factor));
  }
  return scaling.factor == 1 ? RopeScaling{} : scaling;
}

}  // namespace

std::vector<TokenId> ParseTokenList(const Json& config, const char* field, int64_t vocab_size,
                                    const std::vector<TokenId>& fallback,
                                    const std::string& source) {
  const auto found = config.find(field);
  if (found == config.end()) {
    std::vector<TokenId> known;
    for (const TokenId token : fallback) {
      if (token < vocab_size) known.push_back(token);
    }
    return known;
  }
  if (found->is_null()) return {};
  std::vector<TokenId> tokens;
  if (!found->is_array()) {
    tokens.push_back(static_cast<TokenId>(JsonInt(config, field, 0, vocab_size - 1, source)));
    return tokens;
  }
  if (found->size() > kMaxTokenList) {
    throw Error(ErrorCode::kDataLoss, source + ": field '" + field + "' lists " +
                                          std::to_string(found->size()) + " tokens, more than " +
                                          std::to_string(kMaxTokenList));
  }
  for (const Json& element : *found) {
    Json wrapped = Json::object();
    wrapped[field] = element;
    tokens.push_back(static_cast<TokenId>(JsonInt(wrapped, field, 0, vocab_size - 1, source)));
  }
  return tokens;
}

TokenId FirstToken(const std::vector<TokenId>& tokens) {
  return tokens.empty() ? -1 : tokens.front();
}

Json TokenListToJson(const std::vector<TokenId>& tokens) {
  if (tokens.empty()) return nullptr;
  if (tokens.size() == 1) return tokens.front();
  return tokens;
}

RopeConfig ParseRope(const Json& config, double default_theta, const std::string& source) {
  RopeConfig rope;
  const Json* parameters = FindObject(config, "rope_parameters", source);
  const Json* scaling =
      parameters != nullptr ? parameters : FindObject(config, "rope_scaling", source);
  rope.theta = JsonNumberOr(config, "rope_theta", default_theta, 1, 1e12, source);
  if (parameters != nullptr) {
    rope.theta = JsonNumberOr(*parameters, "rope_theta", rope.theta, 1, 1e12, source);
  }
  if (scaling != nullptr) rope.scaling = ParseScaling(*scaling, source);
  for (const Json* object : {&config, scaling}) {
    if (object == nullptr) continue;
    if (JsonNumberOr(*object, "partial_rotary_factor", 1, 0, 1, source) != 1) {
      ThrowUnsupported(source, "'partial_rotary_factor' other than 1");
    }
  }
  return rope;
}

Json RopeScalingToJson(const RopeScaling& scaling) {
  if (scaling.factor == 1) return nullptr;
  return Json{{"factor", scaling.factor},
              {"high_freq_factor", scaling.high_freq_factor},
              {"low_freq_factor", scaling.low_freq_factor},
              {"original_max_position_embeddings", scaling.original_max_positions},
              {"rope_type", "llama3"}};
}

std::vector<double> ScaledRopeFrequencies(int64_t head_dim, double theta,
                                          const RopeScaling& scaling) {
  std::vector<double> frequencies(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double& frequency = frequencies[i];
    frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (scaling.factor == 1) continue;
    // Wavelengths that fit the original context often keep their frequency, those that never
    // completed a turn are slowed by `factor`, and between the two it is interpolated.
    const double turns =
        static_cast<double>(scaling.original_max_positions) * frequency / (2 * std::numbers::pi);
    if (turns > scaling.high_freq_factor) continue;
    if (turns < scaling.low_freq_factor) {
      frequency /= scaling.factor;
      continue;
    }
    const double smooth =
        (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
    frequency = (1 - smooth) * frequency / scaling.factor + smooth * frequency;
  }
  return frequencies;
}

double ShortestDouble(float value) {
  std::array<char, 32> text{};
  *std::to_chars(text.data(), text.data() + text.size() - 1, value).ptr = '\0';
  return std::strtod(text.data(), nullptr);
}

void ThrowUnsupported(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, source + ": unsupported: " + what);
}

WeightSpec MatrixSpec(std::string name, int64_t n, int64_t k) {
  return {
      .name = std::move(name), .kind = WeightKind::kMatrix, .source_shape = {n, k}, .n = n, .k = k};
}

WeightSpec EmbeddingSpec(std::string name, int64_t n, int64_t k) {
  return {.name = std::move(name),
          .kind = WeightKind::kEmbedding,
          .source_shape = {n, k},
          .n = n,
          .k = k};
}

WeightSpec VectorSpec(std::string name, int64_t n) {
  return {.name = std::move(name),
          .kind = WeightKind::kVector,
          .source_shape = {n},
          .n = n,
          .decays = false};
}

const Weight& WeightCursor::Take() {
  TANDEM_CHECK(next_ < weights_.size());
  return weights_[next_++];
}

}  // namespace tandem::engine
