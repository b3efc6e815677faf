#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/gguf_architecture.h"

namespace tandem::engine {

// Rope scalings in GGUF files, as llama.cpp reads and writes them.

// The unit of YaRN's log multiplier in an architecture.
enum class GgufMscale : uint8_t {
  kNone,    // files with a multiplier are refused
  kWhole,   // it is `mscale_all_dim`, beside an `mscale` of 1
  kTenths,  // it is a tenth of `mscale_all_dim`, which is also `mscale` (DeepSeek)
};

// Adds `rope_scaling` to fields that have sizes, heads and `rope_theta`, when the file scales.
void ReadGgufRopeScaling(const GgufMetadata& metadata, GgufMscale mscale,
                         nlohmann::ordered_json& json);
inline constexpr std::string_view kGgufMscaleKey = "rope.scaling.yarn_log_multiplier";
inline constexpr double kGgufMscaleTenth = 0.1;
// Adds the keys of linear scaling and YaRN. The tensor rope_freqs.weight expresses Llama 3's.
void AddGgufRopeScaling(const RopeScaling& scaling, std::vector<GgufSetting>& settings,
                        GgufMscale mscale = GgufMscale::kNone);

}  // namespace tandem::engine
