// Gemma 2 (Gemma Team 2024), as transformers' Gemma2ForCausalLM. It adds to Gemma a second norm
// after attention and MLP, soft caps on scores and logits, and a sliding window on every other
// layer.

#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gemma_decoder.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::gemma2 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Gemma2ForCausalLM", "gemma2"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 256000,
                                .hidden_dim = 2304,
                                .ffn_dim = 9216,
                                .n_layers = 26,
                                .n_heads = 8,
                                .n_kv_heads = 4,
                                .head_dim = 256,
                                .max_context_len = 8192,
                                .tied_embeddings = true,
                                .bos = {2},
                                .eos = {1}},
                               source);
  c.family = "gemma2";
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_activation", "gelu_pytorch_tanh", source);
  const auto windowed = [](int64_t layer) { return layer % 2 == 0; };
  ParseGemmaAttention(json, {.attention_cap = 50, .logit_cap = 30, .windowed = windowed}, c,
                      source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Gemma2ForCausalLM", "gemma2");
  WriteGemmaAttention(c, json);
  return json;
}

constexpr GemmaTraits kTraits{.output_norms = true};

void ShapeTiny(ModelConfig& c) {
  ShapeTinyGemma(c, 2);
  WindowEveryOtherLayer(c);
  c.attention.soft_cap = 5;
  c.logit_cap = 8;
}

constexpr int64_t kLayersOfLargest = 46;

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  json["hidden_activation"] = "gelu_pytorch_tanh";
  ReadGgufQueryScalar(metadata, kLayersOfLargest, json);
  ReadGgufCap(metadata, "attn_logit_softcapping", "attn_logit_softcapping", json);
  ReadGgufCap(metadata, "final_logit_softcapping", "final_logit_softcapping", json);
  json["sliding_window"] = metadata.Int(kGgufWindow).value_or(4096);
}

std::string RequireCaps(const ModelConfig& c) {
  if (!(c.attention.soft_cap > 0)) return "no 'attn_logit_softcapping'";
  return c.logit_cap > 0 ? "" : "no 'final_logit_softcapping'";
}

std::string LimitQueryScalar(const ModelConfig& c) { return QueryScalarLimit(c, kLayersOfLargest); }

constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RefuseLlama3Rope, RefuseUntruncatedYarn, RefuseYarn, RequireTanhGelu,
                              RefuseMlpBias, RefuseAttentionBias, RequireTiedHead, RequireCaps,
                              LimitQueryScalar, RequireAlternatingWindows});
constexpr GgufArchitecture kGguf{.name = "gemma2",
                                 .parts = kGgufFourNormParts,
                                 .ends = kGgufOffsetNormEnds,
                                 .block = kGgufDecoderBlock,
                                 .sentencepiece_class = "GemmaTokenizer",
                                 .read_config = ReadGguf,
                                 .write_config = WriteGgufDecoder,
                                 .limits = kGgufLimits};

constexpr std::array kMaxTextRules =
    JoinRules(std::array{MaxTextRule{"model.embed_tokens.weight", "token_embedder.embedding",
                                     MaxTextShape::kTable, MaxTextValue::kTimesRootWidth}},
              kMaxTextFourNorms,
              std::array{MaxTextRule{"model.layers.{}.self_attn.q_proj.weight",
                                     "self_attention{s}.query.kernel", MaxTextShape::kHeadsOut,
                                     MaxTextValue::kOverRootHeadDim},
                         MaxTextRule{"model.layers.{}.self_attn.k_proj.weight",
                                     "self_attention{s}.key.kernel", MaxTextShape::kHeadsOut}},
              kMaxTextValueAndOut, kMaxTextMlp);

std::string MaxTextCaveat(const ModelConfig& c) {
  const auto head_dim = static_cast<double>(c.attention.head_dim);
  if (c.query_scalar == 0 || c.query_scalar == head_dim) return "";
  char text[160];
  std::snprintf(text, sizeof text,
                "query_pre_attn_scalar is %g and head_dim %g, which is what MaxText divides by: "
                "there attention scores are %.4g times these",
                c.query_scalar, head_dim, std::sqrt(c.query_scalar / head_dim));
  return text;
}

constexpr MaxTextTree kMaxText{.rules = kMaxTextRules,
                               .blocks = MaxTextBlocks::kPairs,
                               .window_period = 2,
                               .vocabulary = MaxTextPaddedVocabulary,
                               .caveat = MaxTextCaveat};
constexpr LoraNames kLora{.rules = kMaxTextLinearLayers, .blocks = MaxTextBlocks::kPairs};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "gemma2",
    .models = "Gemma 2",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListGemmaWeights<kTraits>,
    .list_ropes = ListGemmaRopes<kTraits>,
    .forward = GemmaForward<kTraits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .maxtext = &kMaxText,
    .lora = &kLora,
};

}  // namespace tandem::engine::gemma2
