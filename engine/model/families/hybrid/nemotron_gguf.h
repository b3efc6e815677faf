#pragma once

#include <cstdint>

#include "engine/model/families/config.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/hybrid/mamba_parts.h"

namespace tandem::engine::nemotron_h {

// Every layer is one of these.
enum class Mixer : uint8_t { kMamba, kAttention, kMlp, kExperts };
Mixer MixerOf(const ModelConfig& config, int64_t layer);

// The class reads the least step from a key of its own.
inline constexpr MambaKeys kMambaKeys{.n_heads = "mamba_num_heads",
                                      .head_dim = "mamba_head_dim",
                                      .n_groups = "n_groups",
                                      .state_dim = "ssm_state_size",
                                      .kernel = "conv_kernel",
                                      .conv_bias = "use_conv_bias",
                                      .expand = "",
                                      .proj_bias = "use_bias",
                                      .time_limit = "",
                                      .heads = 128,
                                      .dim = 64,
                                      .groups = 8,
                                      .state = 128};
inline constexpr ExpertKeys kExpertKeys{.count = "n_routed_experts",
                                        .shared_ffn = "moe_shared_expert_intermediate_size",
                                        .n_experts = 8,
                                        .n_chosen = 2,
                                        .normalise = true,
                                        .ffn_dim = 7688,
                                        .shared_ffn_dim = 7688,
                                        .aux_loss = 0};

// Nemotron-H in GGUF files. Models with experts have an architecture of their own.
extern const GgufArchitecture kGguf;

}  // namespace tandem::engine::nemotron_h
