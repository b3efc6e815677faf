// Mixtral (Jiang et al. 2024), as transformers' MixtralForCausalLM: Mistral's attention; two of
// eight experts, whose weights are normalised.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/model/families/expert_gguf.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::mixtral {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"MixtralForCausalLM", "mixtral"};

constexpr ExpertKeys kKeys = LocalExpertKeys(8, 2, 14336, true);

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.ffn_dim = 14336,
                                .n_kv_heads = 8,
                                .max_context_len = 131072,
                                .norm_eps = 1e-5,
                                .bos = {1},
                                .eos = {2}},
                               source);
  c.family = "mixtral";
  c.attention_bias = false;  // not a key of this class
  ParseRope(json, 1e6, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.attention.window = ParseWindow(json, 0, source);
  c.experts = ParseExperts(json, kKeys, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "MixtralForCausalLM", "mixtral");
  json.erase("attention_bias");
  json["sliding_window"] = WindowToJson(c);
  WriteExperts(c, kKeys, json);
  return json;
}

LlamaTraits Traits(const ModelConfig&) { return {.experts = kBlockSparseExperts}; }

void ShapeTiny(ModelConfig& c) {
  c.attention.window = kTinyWindow;
  ShapeTinyExperts(c);
  c.experts.router.top_k = 2;
  c.experts.router.normalise = true;
  c.ffn_dim = c.experts.ffn_dim;
}

// GGUF files of Mixtral have Llama's architecture. The number of experts tells them apart.
bool OwnsGguf(const GgufMetadata& metadata) { return metadata.Int("expert_count").value_or(0) > 0; }

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  ReadGgufExperts(metadata, kKeys, json);
}

constexpr auto kGgufParts =
    JoinGgufParts(kGgufPairedAttentionParts, kGgufTwoNormParts, kGgufBlockSparseParts,
                  std::to_array<GgufPart>({
                      {"ffn_gate.{E}", "block_sparse_moe.experts.{E}.w1"},
                      {"ffn_up.{E}", "block_sparse_moe.experts.{E}.w3"},
                      {"ffn_down.{E}", "block_sparse_moe.experts.{E}.w2"},
                  }));
constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RefuseUntruncatedYarn, RequireSilu, RefuseWindow});
constexpr GgufArchitecture kGguf{.name = "llama",
                                 .parts = kGgufParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGgufExpertDecoder,
                                 .limits = kGgufLimits,
                                 .has_experts = true,
                                 .owns = OwnsGguf};

// MaxText's q and k keep Hugging Face's order of dimensions.
constexpr std::array kMaxTextRules =
    JoinRules(kMaxTextTablesAndTwoNorms, kMaxTextScaledQueryAndKey, kMaxTextValueAndOut,
              std::array{MaxTextRule{"model.layers.{}.block_sparse_moe.gate.weight",
                                     "MoeBlock_0.gate.kernel", MaxTextShape::kKernel},
                         MaxTextRule{"model.layers.{}.block_sparse_moe.experts.{E}.w1.weight",
                                     "MoeBlock_0.wi_0", MaxTextShape::kKernel},
                         MaxTextRule{"model.layers.{}.block_sparse_moe.experts.{E}.w3.weight",
                                     "MoeBlock_0.wi_1", MaxTextShape::kKernel},
                         MaxTextRule{"model.layers.{}.block_sparse_moe.experts.{E}.w2.weight",
                                     "MoeBlock_0.wo", MaxTextShape::kKernel}});
constexpr MaxTextTree kMaxText{.rules = kMaxTextRules, .caveat = MaxTextHasNoWindow};
constexpr LoraNames kLora{.rules = kMaxTextRules};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "mixtral",
    .models = "Mixtral",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .maxtext = &kMaxText,
    .lora = &kLora,
};

}  // namespace tandem::engine::mixtral
