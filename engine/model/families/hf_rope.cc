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
  double attention_factor = YarnScale(scaling.factor, 1);
  if (mscale != 0 && mscale_all_dim != 0) {
    attention_factor =
        YarnScale(scaling.factor, mscale) / YarnScale(scaling.factor, mscale_all_dim);
  }
  scaling.attention_factor =
      JsonNumberOr(object, "attention_factor", attention_factor, 1e-6, 1e6, source);
  return scaling;
}

RopeScaling ParseScaling(const Json& object, int64_t max_context_len, const std::string& source) {
  // transformers before 4.43 uses the key "type".
  const std::string type =
      JsonStringOr(object, "rope_type", JsonStringOr(object, "type", "default", source), source);
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

void SetRope(const RopeConfig& rope, ModelConfig& config) {
  config.rope_theta = rope.theta;
  config.rope_scaling = rope.scaling;
  if (rope.scaling.kind != RopeKind::kYarn) return;
  const double stretched =
      static_cast<double>(rope.scaling.original_max_positions) * rope.scaling.factor;
  config.max_context_len =
      std::max(config.max_context_len,
               static_cast<int64_t>(std::min(stretched, static_cast<double>(kMaxContext))));
}

void ParseRope(const Json& json, double default_theta, ModelConfig& config,
               const std::string& source) {
  RefusePartialRotation(json, source);
  RopeConfig rope;
  rope.theta = JsonNumberOr(json, "rope_theta", default_theta, 1, 1e12, source);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const auto object = json.find(name);
    if (object == json.end() || object->is_null()) continue;
    rope = ParseRopeObject(*object, name, rope.theta, config.max_context_len, source);
    break;
  }
  SetRope(rope, config);
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
  }
  TANDEM_CHECK(false);
}

RopeSpec ScaledRope(int64_t head_dim, double theta, const RopeScaling& scaling) {
  RopeSpec rope;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    rope.frequencies.push_back(
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
  }
  switch (scaling.kind) {
    case RopeKind::kPlain:
      break;
    case RopeKind::kLinear:
      for (double& frequency : rope.frequencies) frequency /= scaling.factor;
      break;
    case RopeKind::kLlama3:
      SlowAsLlama3(scaling, rope.frequencies);
      break;
    case RopeKind::kYarn:
      SlowAsYarn(head_dim, theta, scaling, rope.frequencies);
      rope.amplitude = scaling.attention_factor;
      break;
  }
  return rope;
}

}  // namespace tandem::engine
