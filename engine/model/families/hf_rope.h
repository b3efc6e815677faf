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
// Defaults of a family's class, and the keys that it has. Others are refused by name.
struct RopeRules {
  double theta = 10000;
  bool partial = false;      // `partial_rotary_factor`
  double rotary_factor = 1;  // its default
  bool has_long = false;     // rope type 'longrope'
  bool has_dynamic = false;  // rope type 'dynamic'
};
// Reads `rope_theta` with `rope_scaling`, or `rope_parameters`, into the config, after its sizes.
void ParseRope(const nlohmann::ordered_json& json, const RopeRules& rules, ModelConfig& config,
               const std::string& source);
void ParseRope(const nlohmann::ordered_json& json, double default_theta, ModelConfig& config,
               const std::string& source);
// Parses one such object, which may hold `rope_theta`; `name` is its key.
RopeConfig ParseRopeObject(const nlohmann::ordered_json& object, const char* name,
                           double default_theta, int64_t max_context_len,
                           const std::string& source);
// Sets theta, scaling and the maximum context. YaRN multiplies the original context even where the
// file still states the old length. Throws kDataLoss naming `source` and 'rope_theta' for YaRN with
// theta 1, because no dimension turns more slowly than the first then.
void SetRope(const RopeConfig& rope, ModelConfig& config, const std::string& source);
nlohmann::ordered_json RopeScalingToJson(const RopeScaling& scaling);
// The `partial_rotary_factor` from which transformers computes rotary_dim (0: all of head_dim).
double RotaryFactor(int64_t rotary_dim, int64_t head_dim);
// theta^(-2i/rotary_dim) with transformers' scaling of that kind. A cached key must not depend on
// later tokens, so LongRoPE's choice of factors goes by `context`, the longest possible text.
RopeSpec ScaledRope(int64_t rotary_dim, double theta, const RopeScaling& scaling,
                    int64_t context = 0);

}  // namespace tandem::engine
