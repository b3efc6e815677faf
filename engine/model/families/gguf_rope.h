#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/gguf_architecture.h"

namespace tandem::engine {

// Rope scalings in GGUF files, as llama.cpp reads and writes them.

// Adds `rope_scaling` to fields that have sizes, heads and `rope_theta`, when the file scales.
// `has_mscale`: YaRN's log multiplier is `mscale_all_dim`; otherwise files with it are refused.
void ReadGgufRopeScaling(const GgufMetadata& metadata, bool has_mscale,
                         nlohmann::ordered_json& json);
// Adds the keys of linear scaling and YaRN. The tensor rope_freqs.weight expresses Llama 3's.
void AddGgufRopeScaling(const RopeScaling& scaling, std::vector<GgufSetting>& settings);

}  // namespace tandem::engine
