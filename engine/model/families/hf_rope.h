#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/model/families/config.h"
#include "engine/model/families/family.h"

namespace tandem::engine {

// Rotary positions in config.json, in the keys of transformers 4 and 5. All functions throw
// kDataLoss / kUnsupported naming `source` and the field; unknown rope types are kUnsupported.

struct RopeConfig {
  double theta = 10000;
  RopeScaling scaling;
};
// Reads `rope_theta` with `rope_scaling`, or `rope_parameters`, into the config.
void ParseRope(const nlohmann::ordered_json& json, double default_theta, ModelConfig& config,
               const std::string& source);
// Parses one such object, which may hold `rope_theta`; `name` is its key.
RopeConfig ParseRopeObject(const nlohmann::ordered_json& object, const char* name,
                           double default_theta, int64_t max_context_len,
                           const std::string& source);
// Sets theta, scaling and the maximum context. YaRN multiplies the original context even where the
// file still states the old length.
void SetRope(const RopeConfig& rope, ModelConfig& config);
nlohmann::ordered_json RopeScalingToJson(const RopeScaling& scaling);
// theta^(-2i/head_dim) with transformers' scaling of that kind.
RopeSpec ScaledRope(int64_t head_dim, double theta, const RopeScaling& scaling);

}  // namespace tandem::engine
