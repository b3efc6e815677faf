#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_parts.h"

namespace tandem::engine {

// Parts of GgufArchitecture that families with experts share.

inline constexpr std::string_view kGgufSharedCount = "expert_shared_count";
inline constexpr std::string_view kGgufSharedWidth = "expert_shared_feed_forward_length";
inline constexpr std::string_view kGgufFirstDense = "leading_dense_block_count";
inline constexpr std::string_view kGgufExpertStep = "interleave_moe_layer_step";

// Adds the numbers of experts and of chosen ones under config.json's names of the family.
void ReadGgufExperts(const GgufMetadata& metadata, const ExpertKeys& keys,
                     nlohmann::ordered_json& json);
// Adds the width of an expert, and of the shared one where the family has a key for it.
void ReadGgufExpertWidths(const GgufMetadata& metadata, const ExpertKeys& keys,
                          nlohmann::ordered_json& json);
// Adds these numbers and the width of an expert.
void AddGgufExperts(const ModelConfig& config, std::vector<GgufSetting>& settings);
// The same with the width of the shared expert.
void AddGgufSharedExperts(const ModelConfig& config, std::vector<GgufSetting>& settings);
// WriteGgufDecoder, then AddGgufExperts.
std::vector<GgufSetting> WriteGgufExpertDecoder(const ModelConfig& config);

// The score of experts, and its numbers.
inline constexpr std::string_view kGgufScore = "expert_gating_func";
inline constexpr int64_t kGgufSoftmax = 1, kGgufSigmoid = 2;
// The number of the file, or `fallback`: files without one are of the architecture's first models.
int64_t GgufScore(const GgufMetadata& metadata, int64_t fallback);
// Adds the router's settings under the names that GLM and DeepSeek share: scale, norm, groups,
// shared experts and the dense first layers. Throws kUnsupported unless the score is `score`.
void ReadGgufRouter(const GgufMetadata& metadata, int64_t score, nlohmann::ordered_json& json);
// Adds the same settings after those of AddGgufExperts.
void AddGgufRouter(const ModelConfig& config, std::vector<GgufSetting>& settings);

// Rows of GgufArchitecture::limits: readers fix these by the architecture.
std::string RefuseDenseLayers(const ModelConfig& config);
std::string RequireNormalisedExperts(const ModelConfig& config);
std::string RefuseNormalisedExperts(const ModelConfig& config);

std::string RequireDenseLayersFirst(const ModelConfig& config);
// Readers add the two best scores of a group.
std::string RequireTop2Groups(const ModelConfig& config);

// The rows of a layer's experts.
inline constexpr auto kGgufExpertParts = std::to_array<GgufPart>({
    {"ffn_gate_exps", "mlp.experts.{E}.gate_proj"},
    {"ffn_up_exps", "mlp.experts.{E}.up_proj"},
    {"ffn_down_exps", "mlp.experts.{E}.down_proj"},
});
// The same of files that have gates and ups in one tensor.
inline constexpr auto kGgufJoinedExpertParts = std::to_array<GgufPart>({
    {"ffn_gate_up_exps", "mlp.experts.{E}.gate_proj", GgufChange::kFirstHalf},
    {"ffn_gate_up_exps", "mlp.experts.{E}.up_proj", GgufChange::kSecondHalf},
});
inline constexpr auto kGgufRouterParts = std::to_array<GgufPart>({{"ffn_gate_inp", "mlp.gate"}});
// Qwen's shared expert behind a gate.
inline constexpr auto kGgufGatedExpertParts = std::to_array<GgufPart>({
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate", GgufChange::kOneRow},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
});
// Experts in some layers, beside shared ones.
inline constexpr auto kGgufSharedExpertParts =
    JoinGgufParts(kGgufMlpParts, kGgufRouterParts, kGgufExpertParts, kGgufJoinedExpertParts,
                  std::to_array<GgufPart>({
                      {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
                      {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
                      {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
                  }));
// A block whose q and k have norms, with experts.
inline constexpr auto kGgufNormedExpertParts =
    JoinGgufParts(kGgufAttentionParts, kGgufTwoNormParts, kGgufHeadNormParts, kGgufRouterParts,
                  kGgufExpertParts, kGgufJoinedExpertParts);
// Router and experts under Mixtral's names.
inline constexpr auto kGgufBlockSparseParts = std::to_array<GgufPart>({
    {"ffn_gate_inp", "block_sparse_moe.gate"},
    {"ffn_gate_exps", "block_sparse_moe.experts.{E}.w1"},
    {"ffn_up_exps", "block_sparse_moe.experts.{E}.w3"},
    {"ffn_down_exps", "block_sparse_moe.experts.{E}.w2"},
});

}  // namespace tandem::engine
