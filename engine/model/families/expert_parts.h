#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/layer_ops.h"
#include "engine/model/families/weights.h"

namespace tandem::engine {

// The MLP of layers with experts, under transformers' names. A layer lists its router, the gates of
// all experts, their ups, their downs, then the shared expert.

// The most experts of all layers together, four times those of the largest known models. Weights
// are listed one by one, so this bounds the memory that a config can take.
inline constexpr int64_t kMaxExpertsOfModel = 1 << 17;

// Names inside a layer.
struct ExpertNames {
  std::string_view router = "mlp.gate.weight";
  std::string_view selection_bias = "mlp.gate.e_score_correction_bias";
  std::string_view experts = "mlp.experts";
  std::string_view gate = "gate_proj";
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
  std::string_view shared = "mlp.shared_experts";
  // A linear layer with one output whose sigmoid multiplies the shared expert; empty: none.
  std::string_view shared_gate = "";
};

// Those of Mixtral and later classes that follow it.
inline constexpr ExpertNames kBlockSparseExperts{
    .router = "block_sparse_moe.gate.weight",
    .selection_bias = "block_sparse_moe.e_score_correction_bias",
    .experts = "block_sparse_moe.experts",
    .gate = "w1",
    .up = "w3",
    .down = "w2"};

struct ExpertMlp {
  const Weight& router;
  const Weight* selection_bias;  // null: none
  std::span<const Weight> gates, ups, downs;
  // Null without a shared expert.
  const Weight *shared_gate, *shared_up, *shared_down;
  const Weight* shared_scale;  // of ExpertNames::shared_gate; null: none
};

// `prefix` is the layer's: "model.layers.3.".
void ListExpertMlp(std::vector<WeightSpec>& specs, const std::string& prefix,
                   const ModelConfig& config, const ExpertNames& names);
ExpertMlp TakeExpertMlp(WeightCursor& weights, const ModelConfig& config, const ExpertNames& names);
Act RunExpertMlp(LayerOps& ops, Act x, const ExpertMlp& mlp, const ModelConfig& config);
// The chosen experts alone: no router, no shared expert.
Act RunChosenExperts(LayerOps& ops, Act x, Act routing, const ExpertMlp& mlp,
                     const ModelConfig& config);

// Tensors that hold a projection of all experts of a layer, gates above ups. Their names follow
// that of the experts' module.
struct ExpertStack {
  std::string_view gate_up = "experts.gate_up_proj";
  std::string_view down = "experts.down_proj";
};
// The place of an expert's weight in these tensors; nullopt for other weights.
std::optional<StoredPart> StackedPart(const WeightSpec& spec, const ExpertStack& stack,
                                      const ModelConfig& config);

// The keys of a family with experts, and the values of absent ones.
struct ExpertKeys {
  const char* count = "num_experts";
  const char* other_count = "num_local_experts";  // also read
  const char* top_k = "num_experts_per_tok";
  const char* ffn = "moe_intermediate_size";
  const char* shared_ffn = "";  // of the shared expert; empty: the class has no such key
  int64_t n_experts = 0;
  int64_t n_chosen = 0;
  bool normalise = false;   // of `norm_topk_prob`
  bool fixes_norm = false;  // it is no key of the class
  int64_t ffn_dim = 0;
  int64_t shared_ffn_dim = 0;
  double aux_loss = 0.001;
};
// The keys of Mixtral's class and those that follow it.
constexpr ExpertKeys LocalExpertKeys(int64_t n_experts, int64_t n_chosen, int64_t ffn_dim,
                                     bool normalise) {
  return {.count = "num_local_experts",
          .other_count = "num_experts",
          .ffn = "intermediate_size",
          .n_experts = n_experts,
          .n_chosen = n_chosen,
          .normalise = normalise,
          .fixes_norm = true,
          .ffn_dim = ffn_dim};
}
// Parses these keys, `norm_topk_prob` and `router_aux_loss_coef`. Throws kDataLoss naming the
// field.
ExpertsConfig ParseExperts(const nlohmann::ordered_json& json, const ExpertKeys& keys,
                           const std::string& source);
void WriteExperts(const ModelConfig& config, const ExpertKeys& keys, nlohmann::ordered_json& json);
// `n_group` and `topk_group`.
void ParseExpertGroups(const nlohmann::ordered_json& json, int64_t n_groups, int64_t top_groups,
                       RouterSpec& router, const std::string& source);
// `routed_scaling_factor`.
void ParseExpertScale(const nlohmann::ordered_json& json, double fallback, RouterSpec& router,
                      const std::string& source);
// Writes the scale and the groups.
void WriteExpertGroups(const RouterSpec& router, nlohmann::ordered_json& json);
// The router of DeepSeek-V3: sigmoid scores, a stored bias of the choice, and groups chosen by
// their two best scores.
void UseBiasedRouter(ExpertsConfig& experts);
// `first_k_dense_replace`: the first layers have an MLP.
void ParseFirstDense(const nlohmann::ordered_json& json, int64_t fallback, ModelConfig& config,
                     const std::string& source);
int64_t FirstExpertLayer(const ModelConfig& config);
// Qwen's rule for layers with experts: every `decoder_sparse_step`th that is not in
// `mlp_only_layers`.
void ParseSparseLayers(const nlohmann::ordered_json& json, ModelConfig& config,
                       const std::string& source);
void WriteSparseLayers(const ModelConfig& config, nlohmann::ordered_json& json);

// Experts of tiny test models: more than a tile of a product has rows, chosen by few.
void ShapeTinyExperts(ModelConfig& config);

}  // namespace tandem::engine
