#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/hybrid/mamba_parts.h"

namespace tandem::engine {

// Mamba-2 mixers in GGUF files.

// Adds the sizes under the names of `keys`. Throws kUnsupported for sizes that do not divide each
// other.
void ReadMambaGguf(const GgufMetadata& metadata, const MambaKeys& keys,
                   nlohmann::ordered_json& json);
// The width by hidden_dim. Throws kUnsupported when it is no whole number.
int64_t MambaGgufExpansion(const GgufMetadata& metadata, int64_t hidden_dim);
void AddMambaGguf(const ModelConfig& config, std::vector<GgufSetting>& settings);

// Rows of GgufArchitecture::limits.
std::string RefuseScanBiases(const ModelConfig& config);
std::string RefuseTimeStepLimit(const ModelConfig& config);
// llama.cpp stops at another width.
std::string RequireDividedScan(const ModelConfig& config);

// `mixer` holds the names of a mixer's weights.
inline constexpr auto kMambaGgufParts = std::to_array<GgufPart>({
    {"ssm_in", "mixer.in_proj"},
    {"ssm_conv1d", "mixer.conv1d", GgufChange::kTaps},
    {"ssm_dt.bias", "mixer.dt_bias"},
    {"ssm_a", "mixer.A_log", GgufChange::kNegativeExpColumn},
    {"ssm_d", "mixer.D", GgufChange::kColumn},
    {"ssm_norm", "mixer.norm", GgufChange::kGroups},
    {"ssm_out", "mixer.out_proj"},
});
// Of mixers that lie beside attention, as `mamba`.
inline constexpr auto kNamedMambaGgufParts = std::to_array<GgufPart>({
    {"ssm_in", "mamba.in_proj"},
    {"ssm_conv1d", "mamba.conv1d", GgufChange::kTaps},
    {"ssm_dt.bias", "mamba.dt_bias"},
    {"ssm_a", "mamba.A_log", GgufChange::kNegativeExpColumn},
    {"ssm_d", "mamba.D", GgufChange::kColumn},
    {"ssm_norm", "mamba.norm", GgufChange::kGroups},
    {"ssm_out", "mamba.out_proj"},
});
inline constexpr auto kBackboneGgufEnds = std::to_array<GgufPart>({
    {"token_embd", "backbone.embeddings"},
    {"output_norm", "backbone.norm_f"},
    {"output", "lm_head"},
});
inline constexpr std::string_view kBackboneGgufBlock = "backbone.layers.";

}  // namespace tandem::engine
