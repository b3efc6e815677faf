// GLM-4.5 and 4.6 (GLM team 2025), as transformers' Glm4MoeForCausalLM: half of each head rotates;
// experts by sigmoid scores, groups and a bias, beside a shared one, after dense first layers.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/expert_gguf.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::glm4_moe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Glm4MoeForCausalLM", "glm4_moe"};

constexpr ExpertKeys kKeys{.count = "n_routed_experts",
                           .n_experts = 128,
                           .n_chosen = 8,
                           .normalise = true,
                           .ffn_dim = 1408};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 151552,
                                .ffn_dim = 10944,
                                .n_layers = 46,
                                .n_heads = 96,
                                .n_kv_heads = 8,
                                .max_context_len = 131072,
                                .norm_eps = 1e-5},
                               source);
  c.family = "glm4_moe";
  ParseRope(json, {.partial = true, .rotary_factor = 0.5}, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.qk_norm = JsonBoolOr(json, "use_qk_norm", false, source);
  ExpertsConfig& e = c.experts = ParseExperts(json, kKeys, source);
  UseBiasedRouter(e);
  ParseExpertScale(json, 1, e.router, source);
  ParseExpertGroups(json, 1, 1, e.router, source);
  const int64_t shared = JsonIntOr(json, "n_shared_experts", 1, 1, 64, source);
  e.shared_ffn_dim = shared * e.ffn_dim;
  ParseFirstDense(json, 1, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Glm4MoeForCausalLM", "glm4_moe");
  const ExpertsConfig& e = c.experts;
  json["partial_rotary_factor"] = RotaryFactor(c.rotary_dim, c.attention.head_dim);
  json["use_qk_norm"] = c.qk_norm;
  WriteExperts(c, kKeys, json);
  WriteExpertGroups(e.router, json);
  json["n_shared_experts"] = e.shared_ffn_dim / e.ffn_dim;
  json["first_k_dense_replace"] = FirstExpertLayer(c);
  return json;
}

LlamaTraits Traits(const ModelConfig& c) {
  return {.biases = {.qkv = c.attention_bias},
          .qk_norm = c.qk_norm ? QkNorm::kHeads : QkNorm::kNone};
}

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention_bias = true;
  c.rotary_dim = c.attention.head_dim / 2;
  c.qk_norm = true;
  ShapeTinyExperts(c);
  UseBiasedRouter(c.experts);
  RouterSpec& router = c.experts.router;
  router.normalise = true;
  router.scale = 1.5f;
  router.n_groups = 5;
  router.top_groups = 2;
  c.experts.shared_ffn_dim = c.experts.ffn_dim;
  c.experts.layers.assign(static_cast<size_t>(c.n_layers), true);
  c.experts.layers.front() = false;
}

constexpr GgufDecoderForm kGgufForm{.partial_rope = true};

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kGgufForm);
  ReadGgufExperts(metadata, kKeys, json);
  ReadGgufRouter(metadata, kGgufSigmoid, json);
  json["use_qk_norm"] = metadata.HasTensor("blk.0.attn_q_norm.weight");
  json["hidden_act"] = "silu";
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(c, kGgufForm);
  AddGgufExperts(c, settings);
  AddGgufRouter(c, settings);
  return settings;
}

constexpr auto kGgufParts =
    JoinGgufParts(kGgufAttentionParts, kGgufHeadNormParts,
                  std::to_array<GgufPart>({
                      {"attn_norm", "input_layernorm"},
                      {"post_attention_norm", "post_attention_layernorm"},
                      {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
                  }),
                  kGgufSharedExpertParts);
constexpr auto kGgufLimits = std::to_array<GgufLimit>(
    {RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu, RequireDenseLayersFirst});
constexpr GgufArchitecture kGguf{.name = "glm4moe",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits,
                                 .has_experts = true};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "glm4_moe",
    .models = "GLM-4.5, 4.6",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .lora = &kExpertLoraNames,
};

}  // namespace tandem::engine::glm4_moe
