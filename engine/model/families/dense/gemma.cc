// Gemma (Gemma Team 2024), as transformers' GemmaForCausalLM: Llama's blocks with a GELU, norm
// scales stored minus 1, and embeddings scaled by the square root of their width.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gemma_decoder.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::gemma {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"GemmaForCausalLM", "gemma"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 256000,
                                .hidden_dim = 3072,
                                .ffn_dim = 24576,
                                .n_layers = 28,
                                .n_heads = 16,
                                .n_kv_heads = 16,
                                .head_dim = 256,
                                .max_context_len = 8192,
                                .tied_embeddings = true,
                                .bos = {2},
                                .eos = {1}},
                               source);
  c.family = "gemma";
  ParseRope(json, 10000, c, source);
  // The first files say `hidden_act: gelu` but the models were trained with the tanh form.
  // `hidden_activation` takes precedence when present.
  const std::string act = JsonStringOr(json, "hidden_act", "gelu", source);
  const Activation fallback =
      act == "gelu" ? Activation::kGeluTanh : ParseActivation(json, "hidden_act", "", source);
  c.activation = ParseActivation(json, "hidden_activation", ActivationName(fallback), source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "GemmaForCausalLM", "gemma");
  json["hidden_activation"] = ActivationName(c.activation);
  return json;
}

constexpr GemmaTraits kTraits{};

void ShapeTiny(ModelConfig& c) { ShapeTinyGemma(c, 1); }

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  json["hidden_activation"] = "gelu_pytorch_tanh";
}

constexpr auto kGgufParts =
    JoinGgufParts(kGgufAttentionParts, kGgufMlpParts,
                  std::to_array<GgufPart>({
                      {"attn_norm", "input_layernorm", GgufChange::kPlus1},
                      {"ffn_norm", "post_attention_layernorm", GgufChange::kPlus1},
                  }));
constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RefuseLlama3Rope, RefuseUntruncatedYarn, RefuseYarn, RequireTanhGelu,
                              RefuseMlpBias, RefuseAttentionBias, RequireTiedHead, RefuseWindow});
constexpr GgufArchitecture kGguf{.name = "gemma",
                                 .parts = kGgufParts,
                                 .ends = kGgufOffsetNormEnds,
                                 .block = kGgufDecoderBlock,
                                 .sentencepiece_class = "GemmaTokenizer",
                                 .read_config = ReadGguf,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGgufLimits};

constexpr std::array kMaxTextRules = JoinRules(
    std::array{
        MaxTextRule{"model.embed_tokens.weight", "token_embedder.embedding", MaxTextShape::kTable,
                    MaxTextValue::kTimesRootWidth},
        MaxTextRule{"model.norm.weight", "decoder.decoder_norm.scale", MaxTextShape::kVector,
                    MaxTextValue::kPlusOne},
        MaxTextRule{"model.layers.{}.input_layernorm.weight", "pre_self_attention_norm.scale",
                    MaxTextShape::kVector, MaxTextValue::kPlusOne},
        MaxTextRule{"model.layers.{}.post_attention_layernorm.weight", "pre_ffw_norm.scale",
                    MaxTextShape::kVector, MaxTextValue::kPlusOne}},
    kMaxTextScaledQueryAndKey, kMaxTextValueAndOut, kMaxTextMlp);
constexpr MaxTextTree kMaxText{.rules = kMaxTextRules, .vocabulary = MaxTextPaddedVocabulary};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "gemma",
    .models = "Gemma",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListGemmaWeights<kTraits>,
    .list_ropes = ListGemmaRopes<kTraits>,
    .forward = GemmaForward<kTraits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .maxtext = &kMaxText,
    .lora = &kDecoderLoraNames,
};

}  // namespace tandem::engine::gemma
