#include "engine/model/families/dense/gemma4_gguf.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/model/families/dense/gemma_layer_parts.h"
#include "engine/model/families/expert_gguf.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hf_rope.h"

namespace tandem::engine::gemma4 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kHeadDim = "attention.key_length";
constexpr std::string_view kValueDim = "attention.value_length";
constexpr std::string_view kLocalHeadDim = "attention.key_length_swa";
constexpr std::string_view kLocalValueDim = "attention.value_length_swa";
constexpr std::string_view kTurning = "rope.dimension_count";
constexpr std::string_view kLocalTurning = "rope.dimension_count_swa";
constexpr std::string_view kKeyHeads = "attention.head_count_kv";
constexpr std::string_view kWidth = "feed_forward_length";
// llama.cpp's divisor for a pair that does not turn. Any number that leaves no turn stands for it.
constexpr float kStill = 1e30f, kLeastStill = 1e20f;

// The numbers of a key by layer.
std::vector<int64_t> ByLayer(const GgufMetadata& metadata, std::string_view key, int64_t n_layers) {
  const auto n = static_cast<size_t>(n_layers);
  const auto list = metadata.Ints(key);
  if (!list) return std::vector<int64_t>(n, metadata.RequiredInt(key));
  if (list->size() >= n) return {list->begin(), list->begin() + n_layers};
  throw Error(ErrorCode::kDataLoss, metadata.source() + ": key " + Quoted(metadata.FullName(key)) +
                                        " must list one number for each of " +
                                        std::to_string(n_layers) + " layers");
}

// The share of a full layer's dimensions that turn.
double RotaryPart(const GgufMetadata& metadata, int64_t head_dim) {
  const auto divisors = metadata.RopeDivisors(kGgufRopeDivisors, head_dim / 2);
  if (!divisors) return 1;
  const auto still =
      std::find_if(divisors->begin(), divisors->end(), [](float d) { return d != 1; });
  if (std::any_of(still, divisors->end(), [](float d) { return !(d >= kLeastStill); })) {
    throw Error(ErrorCode::kUnsupported,
                metadata.source() +
                    ": tensor 'rope_freqs.weight' must have 1 for the pairs of a head that turn, "
                    "then 1e20 or more; other frequency divisors are not supported");
  }
  const int64_t turning = still - divisors->begin();
  return turning == 0 ? 0 : RotaryFactor(2 * turning, head_dim);
}

// The MLPs of layers that share keys may be twice as wide as the others.
void ReadWidths(const GgufMetadata& metadata, int64_t n_layers, Json& json) {
  const std::vector<int64_t> widths = ByLayer(metadata, kWidth, n_layers);
  const int64_t n_shared = json["num_kv_shared_layers"].get<int64_t>();
  if (n_shared < 0 || n_shared > n_layers) {
    throw Error(ErrorCode::kDataLoss,
                metadata.source() + ": num_kv_shared_layers (attention.shared_kv_layers) is " +
                    std::to_string(n_shared) + ", not in [0, " + std::to_string(n_layers) + "]");
  }
  const int64_t n_own = n_layers - n_shared;
  if (widths.front() < 1 || widths.front() > kMaxWidth) {
    metadata.Unsupported(kWidth, "is not in [1, " + std::to_string(kMaxWidth) + "]");
  }
  const bool is_wide = widths.back() != widths.front();
  for (int64_t layer = 0; layer < n_layers; ++layer) {
    const int64_t times = is_wide && layer >= n_own ? 2 : 1;
    if (widths[static_cast<size_t>(layer)] == times * widths.front()) continue;
    metadata.Unsupported(kWidth,
                         "differs between layers; supported is twice the width in the layers "
                         "that share keys");
  }
  json["intermediate_size"] = widths.front();
  json["use_double_wide_mlp"] = is_wide;
}

void ReadHeads(const GgufMetadata& metadata, int64_t n_layers, Json& json) {
  const std::vector<int64_t> key_heads = ByLayer(metadata, kKeyHeads, n_layers);
  const int64_t full_dim = metadata.RequiredInt(kHeadDim);
  json["num_key_value_heads"] = key_heads.front();
  json["head_dim"] = metadata.Int(kLocalHeadDim).value_or(full_dim);
  Json layers = Json::object();
  bool has_values = true;
  for (int64_t layer = 0; layer < n_layers; ++layer) {
    const int64_t n_heads = key_heads[static_cast<size_t>(layer)];
    const std::string name = std::to_string(layer);
    const bool is_local = json["layer_types"][static_cast<size_t>(layer)] == kWindowedLayer;
    layers[name] = {{"head_dim", is_local ? json["head_dim"] : Json(full_dim)},
                    {"num_key_value_heads", n_heads}};
    if (is_local) {
      json["num_key_value_heads"] = n_heads;
      continue;
    }
    const bool has_keys = metadata.HasTensor("blk." + name + ".attn_k.weight");
    if (has_keys && !metadata.HasTensor("blk." + name + ".attn_v.weight")) has_values = false;
  }
  json["per_layer_config"] = std::move(layers);
  json["attention_k_eq_v"] = !has_values;
}

void ReadExperts(const GgufMetadata& metadata, Json& json) {
  const int64_t n_experts = metadata.Int("expert_count").value_or(0);
  json["enable_moe_block"] = n_experts > 0;
  if (n_experts <= 0) return;
  ReadGgufExperts(metadata, kExpertKeys, json);
  ReadGgufExpertWidths(metadata, kExpertKeys, json);
}

void ReadRopes(const GgufMetadata& metadata, Json& json) {
  const auto theta = [&](std::string_view key, double usual) {
    return Shortest(metadata.Number(key).value_or(usual));
  };
  json["rope_parameters"] = {
      {kFullLayer,
       {{"rope_type", "proportional"},
        {"rope_theta", theta("rope.freq_base", kGlobalTheta)},
        {"partial_rotary_factor", RotaryPart(metadata, metadata.RequiredInt(kHeadDim))}}},
      {kWindowedLayer,
       {{"rope_type", "default"}, {"rope_theta", theta(kGgufLocalTheta, kLocalTheta)}}}};
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  const int64_t n_layers = GgufLayers(metadata);
  if (n_layers < 1 || n_layers > kMaxLayers) {
    metadata.Unsupported("block_count", "is not in [1, " + std::to_string(kMaxLayers) + "]");
  }
  json["hidden_size"] = metadata.RequiredInt("embedding_length");
  json["num_hidden_layers"] = n_layers;
  json["num_attention_heads"] = metadata.RequiredInt("attention.head_count");
  json["max_position_embeddings"] = metadata.RequiredInt("context_length");
  json["rms_norm_eps"] = Shortest(metadata.RequiredNumber(kGgufRmsNormEps));
  json["hidden_activation"] = "gelu_pytorch_tanh";
  json["hidden_size_per_layer_input"] = metadata.Int(kGgufLayerInput).value_or(0);
  const std::vector<int64_t> windowed = ByLayer(metadata, kGgufWindowPattern, n_layers);
  json["layer_types"] =
      LayerKindsToJson(std::vector<bool>(windowed.begin(), windowed.end()), kWindowedLayer);
  ReadGgufGemmaLayers(metadata, 0, json);
  ReadWidths(metadata, n_layers, json);
  ReadHeads(metadata, n_layers, json);
  ReadExperts(metadata, json);
  ReadRopes(metadata, json);
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(c);
  const auto set = [&](std::string_view key, auto value) {
    const auto found = std::ranges::find(settings, key, &GgufSetting::key);
    GgufSetting& setting = found == settings.end() ? settings.emplace_back() : *found;
    setting = {key, std::move(value)};
  };
  const int64_t n_own = c.n_layers - c.gemma.n_shared_kv_layers;
  std::vector<uint32_t> key_heads, widths;
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const int64_t times = c.gemma.wide_shared_mlp && layer >= n_own ? 2 : 1;
    key_heads.push_back(static_cast<uint32_t>(c.LayerAttention(layer).n_kv_heads));
    widths.push_back(static_cast<uint32_t>(times * c.ffn_dim));
  }
  set(kKeyHeads, key_heads);
  if (widths.back() != widths.front()) set(kWidth, widths);
  const auto local_dim = static_cast<uint32_t>(c.attention.head_dim);
  const auto full_dim = static_cast<uint32_t>(c.layer_attention.back().head_dim);
  for (const std::string_view key : {kHeadDim, kValueDim, kTurning}) set(key, full_dim);
  for (const std::string_view key : {kLocalHeadDim, kLocalValueDim, kLocalTurning}) {
    set(key, local_dim);
  }
  AddGgufGemmaLayers(c, settings);
  if (c.experts.router.n_experts > 0) AddGgufExperts(c, settings);
  return settings;
}

std::vector<float> Divisors(const ModelConfig& c) {
  const auto pairs = static_cast<size_t>(c.layer_attention.back().head_dim / 2);
  const auto turning =
      static_cast<size_t>(std::floor(c.gemma.rotary_part * static_cast<double>(pairs)));
  std::vector<float> divisors(pairs, kStill);
  std::fill_n(divisors.begin(), std::min(turning, pairs), 1.0f);
  return divisors;
}

bool IsIgnored(const GgufMetadata& metadata, std::string_view tensor) {
  return IsGgufSharedKey(metadata, 0, tensor);
}

constexpr auto kParts =
    JoinGgufParts(kGgufNormedGemmaParts,
                  std::to_array<GgufPart>({
                      {"layer_output_scale.weight", "layer_scalar"},
                      {"ffn_gate_inp", "router.proj"},
                      {"ffn_gate_inp.scale", "router.scale"},
                      {"ffn_down_exps", "experts.{E}.down_proj"},
                      {"ffn_down_exps.scale", "router.per_expert_scale"},
                      {"ffn_gate_up_exps", "experts.{E}.gate_proj", GgufChange::kFirstHalf},
                      {"ffn_gate_up_exps", "experts.{E}.up_proj", GgufChange::kSecondHalf},
                      {"ffn_gate_exps", "experts.{E}.gate_proj"},
                      {"ffn_up_exps", "experts.{E}.up_proj"},
                      {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
                      {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
                      {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
                  }));
constexpr auto kLimits = std::to_array<GgufLimit>({RequireTanhGelu, RefuseAttentionBias});

}  // namespace

extern constinit const GgufArchitecture kGguf{.name = "gemma4",
                                              .parts = kParts,
                                              .ends = kGgufLayerInputEnds,
                                              .block = kGgufDecoderBlock,
                                              .sentencepiece_class = "GemmaTokenizer",
                                              .read_config = ReadGguf,
                                              .write_config = WriteGguf,
                                              .limits = kLimits,
                                              .has_experts = true,
                                              .rope_divisors = Divisors,
                                              .ignores = IsIgnored};

}  // namespace tandem::engine::gemma4
