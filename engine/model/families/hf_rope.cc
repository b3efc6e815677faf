#include "engine/model/families/hf_rope.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "engine/base/check.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/model/families/hf_config.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMaxRopeFactor = 1e6;

double RequiredNumber(const Json& object, const char* field, double min, double max,
                      const std::string& source) {
  const auto found = object.find(field);
  if (found == object.end() || found->is_null()) {
    throw Error(ErrorCode::kDataLoss, source + ": field '" + field + "' is missing");
  }
  return JsonNumberOr(object, field, min, min, max, source);
}

RopeScaling ParseLlama3(const Json& object, const std::string& source) {
  RopeScaling scaling;
  scaling.kind = RopeKind::kLlama3;
  scaling.factor = RequiredNumber(object, "factor", 1, kMaxRopeFactor, source);
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
  return scaling;
}

// YaRN's temperature (Peng et al. 2023), applied to attention through q and k.
double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

RopeScaling ParseYarn(const Json& object, int64_t max_context_len, const std::string& source) {
  RopeScaling scaling;
  scaling.kind = RopeKind::kYarn;
  scaling.factor = RequiredNumber(object, "factor", 1, kMaxRopeFactor, source);
  scaling.original_max_positions = JsonIntOr(object, "original_max_position_embeddings",
                                             max_context_len, 1, kMaxContext, source);
  scaling.beta_fast = JsonNumberOr(object, "beta_fast", 32, 1e-6, 1e6, source);
  scaling.beta_slow = JsonNumberOr(object, "beta_slow", 1, 1e-6, 1e6, source);
  scaling.truncate = JsonBoolOr(object, "truncate", true, source);
  const double mscale = JsonNumberOr(object, "mscale", 0, 0, 1e3, source);
  const double mscale_all_dim = JsonNumberOr(object, "mscale_all_dim", 0, 0, 1e3, source);
  scaling.mscale_all_dim = mscale_all_dim;
  double attention_factor = YarnScale(scaling.factor, 1);
  if (mscale != 0 && mscale_all_dim != 0) {
    attention_factor =
        YarnScale(scaling.factor, mscale) / YarnScale(scaling.factor, mscale_all_dim);
  }
  scaling.attention_factor =
      JsonNumberOr(object, "attention_factor", attention_factor, 1e-6, 1e6, source);
  return scaling;
}

std::vector<double> ParseFactors(const Json& object, const char* field, const std::string& source) {
  const auto found = object.find(field);
  if (found == object.end() || !found->is_array()) {
    throw Error(ErrorCode::kDataLoss, source + ": field '" + field + "' must be a list of numbers");
  }
  if (static_cast<int64_t>(found->size()) > kMaxHeadDim / 2) {
    throw Error(ErrorCode::kDataLoss, source + ": field '" + field + "' has " +
                                          std::to_string(found->size()) + " numbers, more than " +
                                          std::to_string(kMaxHeadDim / 2));
  }
  std::vector<double> factors;
  for (const Json& element : *found) {
    const Json wrapped{{field, element}};
    // transformers keeps them as f32.
    factors.push_back(static_cast<float>(RequiredNumber(wrapped, field, 1e-6, 1e6, source)));
  }
  return factors;
}

// LongRoPE (Ding et al. 2024). `original` is the config's own key, which has priority.
RopeScaling ParseLong(const Json& object, int64_t original, int64_t max_context_len,
                      const std::string& source) {
  RopeScaling scaling;
  scaling.kind = RopeKind::kLong;
  scaling.original_max_positions = original > 0
                                       ? original
                                       : JsonIntOr(object, "original_max_position_embeddings",
                                                   max_context_len, 1, kMaxContext, source);
  scaling.short_factors = ParseFactors(object, "short_factor", source);
  scaling.long_factors = ParseFactors(object, "long_factor", source);
  const double stretched =
      static_cast<double>(max_context_len) / static_cast<double>(scaling.original_max_positions);
  scaling.factor =
      JsonNumberOr(object, "factor", std::max(1.0, stretched), 1e-6, kMaxRopeFactor, source);
  double attention_factor = 1;
  if (scaling.factor > 1 && scaling.original_max_positions > 1) {
    attention_factor =
        std::sqrt(1 + std::log(scaling.factor) /
                          std::log(static_cast<double>(scaling.original_max_positions)));
  }
  scaling.attention_factor =
      JsonNumberOr(object, "attention_factor", attention_factor, 1e-6, 1e6, source);
  return scaling;
}

// transformers before 4.43 uses the key "type".
std::string TypeOf(const Json& object, const std::string& source) {
  return JsonStringOr(object, "rope_type", JsonStringOr(object, "type", "default", source), source);
}

RopeScaling ParseScaling(const Json& object, int64_t max_context_len, const std::string& source) {
  const std::string type = TypeOf(object, source);
  RopeScaling scaling;
  if (type == "default") return scaling;
  if (type == "linear") {
    scaling.kind = RopeKind::kLinear;
    scaling.factor = RequiredNumber(object, "factor", 1, kMaxRopeFactor, source);
  } else if (type == "llama3") {
    scaling = ParseLlama3(object, source);
  } else if (type == "yarn") {
    scaling = ParseYarn(object, max_context_len, source);
  } else {
    ThrowUnsupported(source, "rope type " + Quoted(type) +
                                 "; supported are 'default', 'linear', 'llama3' and 'yarn'");
  }
  return scaling.factor == 1 && scaling.attention_factor == 1 ? RopeScaling{} : scaling;
}

void RefusePartialRotation(const Json& object, const std::string& source) {
  if (JsonNumberOr(object, "partial_rotary_factor", 1, 0, 1, source) != 1) {
    ThrowUnsupported(source, "'partial_rotary_factor' other than 1");
  }
}

void SetRotaryDim(double factor, ModelConfig& config, const std::string& source) {
  const int64_t head_dim = config.attention.head_dim;
  const auto rotary = static_cast<int64_t>(static_cast<double>(head_dim) * factor);
  if (rotary < 2 || rotary % 2 != 0) {
    throw Error(ErrorCode::kDataLoss, source +
                                          ": field 'partial_rotary_factor' must rotate an even "
                                          "number of dimensions, got " +
                                          std::to_string(rotary) + " of " +
                                          std::to_string(head_dim));
  }
  config.rotary_dim = rotary == head_dim ? 0 : rotary;
}

void CheckFactors(const ModelConfig& config, const std::string& source) {
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.kind != RopeKind::kLong) return;
  const int64_t rotary = config.rotary_dim > 0 ? config.rotary_dim : config.attention.head_dim;
  const auto check = [&](const std::vector<double>& factors, const char* field) {
    if (static_cast<int64_t>(factors.size()) == rotary / 2) return;
    throw Error(ErrorCode::kDataLoss, source + ": field '" + field + "' must have " +
                                          std::to_string(rotary / 2) + " numbers, got " +
                                          std::to_string(factors.size()));
  };
  check(scaling.short_factors, "short_factor");
  check(scaling.long_factors, "long_factor");
}

// The dimension that completes `turns` turns in the original context.
double YarnDimension(double turns, int64_t head_dim, double theta, const RopeScaling& scaling) {
  return static_cast<double>(head_dim) *
         std::log(static_cast<double>(scaling.original_max_positions) /
                  (turns * 2 * std::numbers::pi)) /
         (2 * std::log(theta));
}

// Keeps dimensions that turn often, slows those that turn seldom by `factor`, and interpolates on a
// ramp between.
void SlowAsYarn(int64_t head_dim, double theta, const RopeScaling& scaling,
                std::vector<double>& frequencies) {
  double low = YarnDimension(scaling.beta_fast, head_dim, theta, scaling);
  double high = YarnDimension(scaling.beta_slow, head_dim, theta, scaling);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double slowed = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / scaling.factor * slowed + frequencies[i] * (1 - slowed);
  }
}

// Keeps wavelengths that fit the original context often. Slows those that never complete a turn by
// `factor`, and interpolates between the two.
void SlowAsLlama3(const RopeScaling& scaling, std::vector<double>& frequencies) {
  for (double& frequency : frequencies) {
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
}

}  // namespace

void SetRope(const RopeConfig& rope, ModelConfig& config, const std::string& source) {
  config.rope_theta = rope.theta;
  config.rope_scaling = rope.scaling;
  if (rope.scaling.kind != RopeKind::kYarn) return;
  if (rope.theta <= 1) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field 'rope_theta' must be greater than 1 with 'rope_type' 'yarn'");
  }
  const double stretched =
      static_cast<double>(rope.scaling.original_max_positions) * rope.scaling.factor;
  config.max_context_len =
      std::max(config.max_context_len,
               static_cast<int64_t>(std::min(stretched, static_cast<double>(kMaxContext))));
}

void ParseRope(const Json& json, const RopeRules& rules, ModelConfig& config,
               const std::string& source) {
  double factor = rules.rotary_factor;
  if (rules.partial) {
    factor = JsonNumberOr(json, "partial_rotary_factor", factor, 0, 1, source);
  } else {
    RefusePartialRotation(json, source);
  }
  RopeConfig rope;
  rope.theta = JsonNumberOr(json, "rope_theta", rules.theta, 1, 1e12, source);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const auto object = json.find(name);
    if (object == json.end() || object->is_null()) continue;
    Json known = *object;
    if (rules.partial && known.is_object()) {
      factor = JsonNumberOr(known, "partial_rotary_factor", factor, 0, 1, source);
      known.erase("partial_rotary_factor");
    }
    // The first models of this kind call it 'su'.
    const std::string type = known.is_object() ? TypeOf(known, source) : "";
    if (rules.has_long && (type == "longrope" || type == "su")) {
      rope.theta = JsonNumberOr(known, "rope_theta", rope.theta, 1, 1e12, source);
      rope.scaling = ParseLong(
          known, JsonIntOr(json, "original_max_position_embeddings", 0, 0, kMaxContext, source),
          config.max_context_len, source);
    } else if (rules.has_dynamic && type == "dynamic") {
      rope.theta = JsonNumberOr(known, "rope_theta", rope.theta, 1, 1e12, source);
      rope.scaling.kind = RopeKind::kDynamic;
      rope.scaling.factor = RequiredNumber(known, "factor", 1, kMaxRopeFactor, source);
    } else {
      rope = ParseRopeObject(known, name, rope.theta, config.max_context_len, source);
    }
    break;
  }
  SetRotaryDim(factor, config, source);
  SetRope(rope, config, source);
  CheckFactors(config, source);
}

double RotaryFactor(int64_t rotary_dim, int64_t head_dim) {
  if (rotary_dim == 0) return 1;
  const auto size = static_cast<double>(head_dim);
  double factor = static_cast<double>(rotary_dim) / size;
  // transformers rounds head_dim * factor down.
  while (static_cast<int64_t>(size * factor) < rotary_dim) factor = std::nextafter(factor, 1.0);
  return factor;
}

void ParseRope(const Json& json, double default_theta, ModelConfig& config,
               const std::string& source) {
  ParseRope(json, RopeRules{.theta = default_theta}, config, source);
}

RopeConfig ParseRopeObject(const Json& object, const char* name, double default_theta,
                           int64_t max_context_len, const std::string& source) {
  if (!object.is_object()) {
    throw Error(ErrorCode::kDataLoss, source + ": field '" + name +
                                          "' must be an object or null, got " + object.type_name());
  }
  RefusePartialRotation(object, source);
  RopeConfig rope;
  rope.theta = JsonNumberOr(object, "rope_theta", default_theta, 1, 1e12, source);
  rope.scaling = ParseScaling(object, max_context_len, source);
  return rope;
}

Json RopeScalingToJson(const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeKind::kPlain:
      return nullptr;
    case RopeKind::kLinear:
      return Json{{"factor", scaling.factor}, {"rope_type", "linear"}};
    case RopeKind::kLlama3:
      return Json{{"factor", scaling.factor},
                  {"high_freq_factor", scaling.high_freq_factor},
                  {"low_freq_factor", scaling.low_freq_factor},
                  {"original_max_position_embeddings", scaling.original_max_positions},
                  {"rope_type", "llama3"}};
    case RopeKind::kYarn:
      return Json{{"factor", scaling.factor},
                  {"original_max_position_embeddings", scaling.original_max_positions},
                  {"attention_factor", scaling.attention_factor},
                  {"beta_fast", scaling.beta_fast},
                  {"beta_slow", scaling.beta_slow},
                  {"truncate", scaling.truncate},
                  {"rope_type", "yarn"}};
    case RopeKind::kDynamic:
      return Json{{"factor", scaling.factor}, {"rope_type", "dynamic"}};
    case RopeKind::kLong:
      return Json{{"rope_type", "longrope"},
                  {"short_factor", scaling.short_factors},
                  {"long_factor", scaling.long_factors},
                  {"factor", scaling.factor},
                  {"attention_factor", scaling.attention_factor},
                  {"original_max_position_embeddings", scaling.original_max_positions}};
  }
  TANDEM_CHECK(false);
}

RopeSpec ScaledRope(int64_t rotary_dim, double theta, const RopeScaling& scaling, int64_t context) {
  RopeSpec rope;
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    rope.frequencies.push_back(
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim)));
  }
  switch (scaling.kind) {
    case RopeKind::kPlain:
    case RopeKind::kDynamic:
      break;
    case RopeKind::kLinear:
      for (double& frequency : rope.frequencies) frequency /= scaling.factor;
      break;
    case RopeKind::kLlama3:
      SlowAsLlama3(scaling, rope.frequencies);
      break;
    case RopeKind::kYarn:
      SlowAsYarn(rotary_dim, theta, scaling, rope.frequencies);
      rope.amplitude = scaling.attention_factor;
      break;
    case RopeKind::kLong: {
      const bool is_long = context > scaling.original_max_positions;
      const std::vector<double>& factors = is_long ? scaling.long_factors : scaling.short_factors;
      for (size_t i = 0; i < rope.frequencies.size(); ++i) rope.frequencies[i] /= factors.at(i);
      rope.amplitude = scaling.attention_factor;
      break;
    }
  }
  return rope;
}

}  // namespace tandem::engine
