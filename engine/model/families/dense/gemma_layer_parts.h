#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/layer_ops.h"
#include "engine/model/families/weights.h"

namespace tandem::engine {

// Parts of Gemma 3n and 4: an embedding of the token for each layer, and last layers that read an
// earlier layer's keys and values. Each part has functions that parse, list and run it, in the same
// weight order. Norm scales are stored as they are.

// `hidden_size_per_layer_input`, `vocab_size_per_layer_input` and `num_kv_shared_layers`.
struct GemmaLayerDefaults {
  int64_t layer_vocab = 262144;
  int64_t min_layer_dim = 0;  // 0: the family also works without such embeddings
  int64_t n_shared = 0;
};
// REQUIRES: layers' windows are parsed. Throws kDataLoss naming `source` and the field.
void ParseGemmaLayers(const nlohmann::ordered_json& json, const GemmaLayerDefaults& defaults,
                      ModelConfig& config, const std::string& source);
void WriteGemmaLayers(const ModelConfig& config, nlohmann::ordered_json& json);

// The tables of layer inputs, and their values of all layers: [rows, n_layers * per_layer_dim].
void ListLayerInputs(std::vector<WeightSpec>& specs, const ModelConfig& config);
Act RunLayerInputs(WeightCursor& weights, const ModelConfig& config, Act x, LayerOps& ops);
// One layer's gate, projection and norm. Runs them on x and returns the term to add.
void ListLayerGate(std::vector<WeightSpec>& specs, const std::string& prefix,
                   const ModelConfig& config);
Act RunLayerGate(WeightCursor& weights, const ModelConfig& config, Act x, Act inputs, int64_t layer,
                 LayerOps& ops);

// Whether a layer reads keys and values of an earlier one.
bool SharesKeys(const ModelConfig& config, int64_t layer);
// The keys and values that the last own layer of each kind left for layers that share them.
struct SharedKeys {
  Act k, v;
  int64_t layer = -1;
};
using SharedKeysByKind = std::array<SharedKeys, 2>;  // of full and of windowed layers

// In the order of the families' ropes.
inline constexpr size_t kGemmaGlobalRope = 0, kGemmaLocalRope = 1;

// Attention with norms on the heads of q, k and v. Without `has_values` the values are the keys
// before norm and rope. `prefix` is the layer's.
void ListNormedAttention(std::vector<WeightSpec>& specs, const std::string& prefix,
                         const ModelConfig& config, int64_t layer, bool has_values);
Act RunNormedAttention(WeightCursor& weights, const ModelConfig& config, Act h, int64_t layer,
                       bool has_values, SharedKeysByKind& shared, LayerOps& ops);

// GGUF files have an embedding for every token; those beyond the config's have that of token 0.
// Readers take all of them.
extern const GgufOrder kGgufEveryToken;
inline constexpr auto kGgufLayerInputEnds = std::to_array<GgufPart>({
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"per_layer_token_embd", "model.embed_tokens_per_layer", GgufChange::kNone, &kGgufEveryToken},
    {"per_layer_token_embd", "model.embed_tokens_per_layer"},
    {"per_layer_model_proj", "model.per_layer_model_projection"},
    {"per_layer_proj_norm", "model.per_layer_projection_norm"},
});
inline constexpr auto kGgufNormedGemmaParts =
    JoinGgufParts(kGgufAttentionParts, kGgufHeadNormParts, kGgufMlpParts,
                  std::to_array<GgufPart>({
                      {"attn_norm", "input_layernorm"},
                      {"post_attention_norm", "post_attention_layernorm"},
                      {"ffn_norm", "pre_feedforward_layernorm"},
                      {"post_ffw_norm", "post_feedforward_layernorm"},
                      {"inp_gate", "per_layer_input_gate"},
                      {"proj", "per_layer_projection"},
                      {"post_norm", "post_per_layer_input_norm"},
                  }));
inline constexpr std::string_view kGgufSharedKv = "attention.shared_kv_layers";
inline constexpr std::string_view kGgufLayerInput = "embedding_length_per_layer_input";
// The window, the layers' embeddings, and the cap of the logits. `n_shared` is for files without
// the number of layers that share keys.
void ReadGgufGemmaLayers(const GgufMetadata& metadata, int64_t n_shared,
                         nlohmann::ordered_json& json);
void AddGgufGemmaLayers(const ModelConfig& config, std::vector<GgufSetting>& settings);
// Whether the tensor is of the keys or values of a layer that reads those of an earlier one. Files
// of other programs have them.
bool IsGgufSharedKey(const GgufMetadata& metadata, int64_t n_shared, std::string_view tensor);

}  // namespace tandem::engine
