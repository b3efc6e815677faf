// Gemma 3, text (Gemma Team 2025), as transformers' Gemma3ForCausalLM: Gemma 2 without its caps and
// with norms on the heads of q and k. Every full-attention layer follows five windowed layers,
// which have their own rope. Only the text part of Gemma3ForConditionalGeneration is read.

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gemma_decoder.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/maxtext_rules.h"
#include "engine/model/families/text_part.h"

namespace tandem::engine::gemma3 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kArchitectures{
    "Gemma3ForCausalLM", "gemma3_text", "Gemma3ForConditionalGeneration", "gemma3"};

constexpr double kGlobalTheta = 1000000;
constexpr int64_t kPattern = 6;  // every layer has a window except each sixth

ModelConfig ParseConfig(const Json& outer, const std::string& source) {
  const Json json = TextConfig(outer, source);
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 262208,
                                .hidden_dim = 2304,
                                .ffn_dim = 9216,
                                .n_layers = 26,
                                .n_heads = 8,
                                .n_kv_heads = 4,
                                .head_dim = 256,
                                .max_context_len = 131072,
                                .tied_embeddings = true,
                                .bos = {2},
                                .eos = {1}},
                               source);
  c.family = "gemma3";
  ParseGemmaRopes(json, c, source);
  c.activation = ParseActivation(json, "hidden_activation", "gelu_pytorch_tanh", source);
  const int64_t pattern =
      JsonIntOr(json, "sliding_window_pattern", kPattern, 1, kMaxLayers, source);
  const auto windowed = [=](int64_t layer) { return (layer + 1) % pattern != 0; };
  ParseGemmaAttention(json, {.windowed = windowed}, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Gemma3ForCausalLM", "gemma3_text");
  json["rope_local_base_freq"] = c.local_rope_theta;
  WriteGemmaAttention(c, json);
  return json;
}

constexpr GemmaTraits kTraits{.output_norms = true, .qk_norm = true, .local_rope = true};

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs = ListGemmaWeights(c, kTraits);
  AddMultimodalNames(specs);
  return specs;
}

void ShapeTiny(ModelConfig& c) {
  c.n_layers = 3;
  ShapeTinyGemma(c, 2);
  WindowEveryOtherLayer(c);
  c.rope_theta = 1000000;
  c.rope_scaling = {.kind = RopeKind::kLinear, .factor = 8};
}

constexpr int64_t kLayersOfLargest = 62;

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  json["hidden_activation"] = "gelu_pytorch_tanh";
  if (!json.contains("rope_theta")) json["rope_theta"] = kGlobalTheta;
  ReadGgufQueryScalar(metadata, kLayersOfLargest, json);
  ReadGgufCap(metadata, "final_logit_softcapping", "final_logit_softcapping", json);
  ReadGgufLocalTheta(metadata, json);
  ReadGgufWindows(metadata, json);
  if (json.contains("layer_types")) return;
  if (json["sliding_window"].is_null()) {
    ListFullLayersWithoutWindow(json);
    json["sliding_window"] = kGemmaWindow;  // of no layer
    return;
  }
  if (const auto every = metadata.Int("attention.sliding_window_pattern")) {
    json["sliding_window_pattern"] = *every;
  }
}

// Readers know the pattern of the released models; only another one is written.
std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(c);
  AddGgufWindow(c, settings);
  if (HasWindow(c) && !FollowsPattern(c, kPattern)) {
    settings.push_back({kGgufWindowPattern, WindowedLayers(c)});
  }
  settings.push_back({kGgufLocalTheta, static_cast<float>(c.local_rope_theta)});
  AddGgufCaps(c, settings);
  return settings;
}

std::string RefuseScoreCap(const ModelConfig& c) {
  return c.attention.soft_cap > 0 ? "'attn_logit_softcapping'" : "";
}

std::string LimitQueryScalar(const ModelConfig& c) { return QueryScalarLimit(c, kLayersOfLargest); }

constexpr auto kGgufLimits = std::to_array<GgufLimit>(
    {RefuseLlama3Rope, RefuseUntruncatedYarn, RefuseYarn, RequireTanhGelu, RefuseMlpBias,
     RefuseAttentionBias, RefuseScoreCap, LimitQueryScalar});
constexpr GgufArchitecture kGguf{.name = "gemma3",
                                 .parts = kGgufFourNormParts,
                                 .ends = kGgufOffsetNormEnds,
                                 .block = kGgufDecoderBlock,
                                 .sentencepiece_class = "GemmaTokenizer",
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

constexpr std::array kMaxTextRules = JoinRules(
    std::array{MaxTextRule{"model.embed_tokens.weight", "token_embedder.embedding",
                           MaxTextShape::kTable, MaxTextValue::kTimesRootWidthInBf16}},
    kMaxTextFourNorms, kMaxTextQueryAndKey, kMaxTextValueAndOut,
    std::array{
        MaxTextRule{"model.layers.{}.self_attn.q_norm.weight", "self_attention.query_norm.scale",
                    MaxTextShape::kVector, MaxTextValue::kPlusOne},
        MaxTextRule{"model.layers.{}.self_attn.k_norm.weight", "self_attention.key_norm.scale",
                    MaxTextShape::kVector, MaxTextValue::kPlusOne}},
    kMaxTextMlp);

// MaxText's Gemma 3 lacks the rows that multimodal checkpoints append to the text vocabulary.
int64_t MaxTextVocabulary(int64_t size) { return std::min<int64_t>(size, 262144); }

constexpr MaxTextTree kMaxText{.rules = kMaxTextRules,
                               .blocks = MaxTextBlocks::kSixes,
                               .window_period = kPattern,
                               .vocabulary = MaxTextVocabulary};
constexpr LoraNames kLora{.rules = kMaxTextLinearLayers, .blocks = MaxTextBlocks::kSixes};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "gemma3",
    .models = "Gemma 3",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListGemmaRopes<kTraits>,
    .forward = GemmaForward<kTraits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .maxtext = &kMaxText,
    .lora = &kLora,
};

}  // namespace tandem::engine::gemma3
