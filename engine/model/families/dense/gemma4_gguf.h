#pragma once

#include "engine/model/families/expert_parts.h"
#include "engine/model/families/gguf_architecture.h"

namespace tandem::engine::gemma4 {

inline constexpr double kLocalTheta = 10000, kGlobalTheta = 1000000;
inline constexpr ExpertKeys kExpertKeys{
    .top_k = "top_k_experts", .normalise = true, .fixes_norm = true, .aux_loss = 0};

// Gemma 4 in GGUF files. Full layers have heads of another length and number than windowed ones. A
// tensor of divisors leaves some of their dimensions unturned.
extern const GgufArchitecture kGguf;

}  // namespace tandem::engine::gemma4
