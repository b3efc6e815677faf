// LFM2 (Liquid AI 2025), as transformers' Lfm2ForCausalLM: pre-norm blocks whose mixer is a gated
// short convolution, or attention with norms on the heads of q and k, and a gated MLP.

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/error.h"
#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/hybrid/recurrent_parts.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/text_part.h"

namespace tandem::engine::lfm2 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Lfm2ForCausalLM", "lfm2"};
constexpr const char* kConvLayer = "conv";

void Rename(Json& json, const char* from, const char* to) {
  if (IsGiven(json, from)) json[to] = json[from];
}

// Two thirds of the stated width times a factor, rounded up to a multiple.
int64_t AdjustedWidth(const Json& json, int64_t width, const std::string& source) {
  if (!JsonBoolOr(json, "block_auto_adjust_ff_dim", true, source)) return width;
  int64_t adjusted = 2 * width / 3;
  const auto factor = json.find("block_ffn_dim_multiplier");
  if (factor != json.end() && factor->is_null()) return std::max<int64_t>(1, adjusted);
  const double times = JsonNumberOr(json, "block_ffn_dim_multiplier", 1, 1e-3, 1e3, source);
  const int64_t multiple = JsonIntOr(json, "block_multiple_of", 256, 1, kMaxWidth, source);
  adjusted = static_cast<int64_t>(times * static_cast<double>(adjusted));
  adjusted = (adjusted + multiple - 1) / multiple * multiple;
  if (adjusted < 1 || adjusted > kMaxWidth) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field 'block_ffn_dim_multiplier' makes feed-forward layers of width " +
                    std::to_string(adjusted) + ", allowed are 1 to " + std::to_string(kMaxWidth));
  }
  return adjusted;
}

std::vector<bool> AttentionLayers(const Json& json, int64_t n_layers, const std::string& source) {
  const auto listed = ParseLayerNumbers(json, "full_attn_idxs", n_layers - 1, source);
  std::vector<bool> attends(static_cast<size_t>(n_layers), !listed);
  for (const int64_t layer : listed.value_or(std::vector<int64_t>())) {
    attends[static_cast<size_t>(layer)] = true;
  }
  return attends;
}

ModelConfig ParseConfig(const Json& given, const std::string& source) {
  Json json = given;
  Rename(json, "norm_eps", "rms_norm_eps");
  Rename(json, "tie_embedding", "tie_word_embeddings");
  Rename(json, "block_ff_dim", "intermediate_size");
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 65536,
                                .hidden_dim = 2560,
                                .ffn_dim = 12288,
                                .n_layers = 32,
                                .n_heads = 32,
                                .n_kv_heads = 8,
                                .max_context_len = 128000,
                                .norm_eps = 1e-5,
                                .tied_embeddings = true,
                                .bos = {1},
                                .eos = {2}},
                               source);
  c.family = "lfm2";
  c.attention_bias = false;  // the class has no such key
  ParseRope(json, 1000000, c, source);
  c.ffn_dim = AdjustedWidth(json, c.ffn_dim, source);
  c.recurrent.conv_bias = JsonBoolOr(json, "conv_bias", false, source);
  c.recurrent.conv = {.channels = c.hidden_dim,
                      .kernel = JsonIntOr(json, "conv_L_cache", 3, 1, kMaxConvKernel, source),
                      .form = ConvForm::kGated};
  const std::vector<bool> attends = AttentionLayers(json, c.n_layers, source);
  ParseRecurrentLayers(
      json, kConvLayer, [&](int64_t layer) { return !attends[static_cast<size_t>(layer)]; }, c,
      source);
  if (!IsGiven(json, "full_attn_idxs")) return c;
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    if (attends[static_cast<size_t>(layer)] != c.IsRecurrent(layer)) continue;
    throw Error(ErrorCode::kDataLoss, source + ": fields 'layer_types' and 'full_attn_idxs' " +
                                          "contradict each other at layer " +
                                          std::to_string(layer));
  }
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Lfm2ForCausalLM", "lfm2");
  json.erase("attention_bias");
  json.erase("hidden_act");
  json.erase("rms_norm_eps");
  json["norm_eps"] = ShortestDouble(c.norm_eps);
  json["block_auto_adjust_ff_dim"] = false;
  json["conv_bias"] = c.recurrent.conv_bias;
  json["conv_L_cache"] = c.recurrent.conv.kernel;
  json["layer_types"] = RecurrentLayersToJson(c, kConvLayer);
  return json;
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  const AttentionSpec& a = c.attention;
  const int64_t hidden = c.hidden_dim;
  const int64_t q_dim = a.n_heads * a.head_dim, kv_dim = a.n_kv_heads * a.head_dim;
  const bool bias = c.recurrent.conv_bias;
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("model.embed_tokens.weight", c.vocab_size, hidden));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = LayerPrefix(layer);
    specs.push_back(VectorSpec(prefix + "operator_norm.weight", hidden));
    if (c.IsRecurrent(layer)) {
      ListProjection(specs, prefix + "conv.in_proj", 3 * hidden, hidden, bias);
      specs.push_back(ConvSpecOf(prefix + "conv.conv.weight", c.recurrent.conv));
      if (bias) specs.push_back(VectorSpec(prefix + "conv.conv.bias", hidden));
      ListProjection(specs, prefix + "conv.out_proj", hidden, hidden, bias);
    } else {
      ListProjection(specs, prefix + "self_attn.q_proj", q_dim, hidden, false);
      ListProjection(specs, prefix + "self_attn.k_proj", kv_dim, hidden, false);
      ListProjection(specs, prefix + "self_attn.v_proj", kv_dim, hidden, false);
      ListProjection(specs, prefix + "self_attn.out_proj", hidden, q_dim, false);
      specs.push_back(VectorSpec(prefix + "self_attn.q_layernorm.weight", a.head_dim));
      specs.push_back(VectorSpec(prefix + "self_attn.k_layernorm.weight", a.head_dim));
    }
    specs.push_back(VectorSpec(prefix + "ffn_norm.weight", hidden));
    ListProjection(specs, prefix + "feed_forward.w1", c.ffn_dim, hidden, false);
    ListProjection(specs, prefix + "feed_forward.w3", c.ffn_dim, hidden, false);
    ListProjection(specs, prefix + "feed_forward.w2", hidden, c.ffn_dim, false);
  }
  ListHead(specs, VectorSpec("model.embedding_norm.weight", hidden), c);
  AddMultimodalNames(specs);
  return specs;
}

Act ConvMixer(LayerOps& ops, WeightCursor& w, const ModelConfig& c, Act h) {
  const bool bias = c.recurrent.conv_bias;
  const Projection in = TakeProjection(w, bias);
  const Weight& taps = w.Take();
  const Weight* conv_bias = bias ? &w.Take() : nullptr;
  const Projection out = TakeProjection(w, bias);
  const Act bcx = Project(ops, h, in);  // [rows, 3 * hidden_dim]: B, C, x
  return Project(ops, ops.CausalConv(bcx, taps, conv_bias, c.recurrent.conv), out);
}

Act AttentionMixer(LayerOps& ops, WeightCursor& w, const ModelConfig& c, Act h, int64_t layer) {
  const SelfAttention attention = TakeSelfAttention(w, {});
  const Weight& q_norm = w.Take();
  const Weight& k_norm = w.Take();
  const Act q = ops.Rope(ops.RmsNormF32(Project(ops, h, attention.q), q_norm, c.norm_eps), 0);
  const Act k = ops.Rope(ops.RmsNormF32(Project(ops, h, attention.k), k_norm, c.norm_eps), 0);
  const Act v = Project(ops, h, attention.v);
  return Project(ops, ops.Attention(q, k, v, c.LayerAttention(layer), layer), attention.o);
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = ops.Embed(embedding);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const Act h = ops.RmsNorm(x, w.Take(), c.norm_eps);
    x = ops.Add(
        x, c.IsRecurrent(layer) ? ConvMixer(ops, w, c, h) : AttentionMixer(ops, w, c, h, layer));
    const Act m = ops.RmsNorm(x, w.Take(), c.norm_eps);
    const Projection gate = TakeProjection(w, false), up = TakeProjection(w, false),
                     down = TakeProjection(w, false);
    const Act g = Project(ops, m, gate);  // [rows, ffn_dim]
    const Act u = Project(ops, m, up);
    x = ops.Add(x, Project(ops, ops.GatedActivation(g, u, Activation::kSilu), down));
  }
  RunHead(ops, w, embedding, c, x);
}

void ShapeTiny(ModelConfig& c) {
  c.n_layers = 4;
  c.attention.n_kv_heads = 2;
  c.rope_theta = 1000000;
  c.recurrent.conv = {.channels = c.hidden_dim, .kernel = 3, .form = ConvForm::kGated};
  c.recurrent.conv_bias = true;
  c.recurrent.layers = {true, false, true, false};
}

constexpr GgufDecoderForm kGgufForm{
    .heads_by_layer = true, .eps_field = "norm_eps", .bias_field = nullptr};
constexpr std::string_view kGgufTapsKey = "shortconv.l_cache";

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kGgufForm);
  json["block_auto_adjust_ff_dim"] = false;
  json["conv_bias"] = false;
  json["conv_L_cache"] = metadata.RequiredInt(kGgufTapsKey);
  json["layer_types"] = LayerKindsToJson(ReadGgufLayersWithoutHeads(metadata), kConvLayer);
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(c, kGgufForm);
  SetGgufHeadsByLayer(
      c, [](const ModelConfig& config, int64_t layer) { return !config.IsRecurrent(layer); },
      settings);
  settings.push_back({kGgufTapsKey, static_cast<uint32_t>(c.recurrent.conv.kernel)});
  return settings;
}

std::string RefuseConvBias(const ModelConfig& c) {
  return c.recurrent.conv_bias ? "'conv_bias': true" : "";
}

constexpr auto kGgufParts = std::to_array<GgufPart>({
    {"attn_norm", "operator_norm"},
    {"shortconv.in_proj", "conv.in_proj"},
    {"shortconv.conv", "conv.conv", GgufChange::kTaps},
    {"shortconv.out_proj", "conv.out_proj"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.out_proj"},
    {"attn_q_norm", "self_attn.q_layernorm"},
    {"attn_k_norm", "self_attn.k_layernorm"},
    {"ffn_norm", "ffn_norm"},
    {"ffn_gate", "feed_forward.w1"},
    {"ffn_up", "feed_forward.w3"},
    {"ffn_down", "feed_forward.w2"},
});
// The last norm has the name of a norm of embeddings, in all files of this architecture.
constexpr auto kGgufEnds = std::to_array<GgufPart>({
    {"token_embd", "model.embed_tokens"},
    {"token_embd_norm", "model.embedding_norm"},
    {"output", "lm_head"},
});
constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RefuseLlama3Rope, RefuseUntruncatedYarn, RefuseConvBias});
constexpr GgufArchitecture kGguf{.name = "lfm2",
                                 .parts = kGgufParts,
                                 .ends = kGgufEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "lfm2",
    .models = "LFM2",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListLlamaRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
};

}  // namespace tandem::engine::lfm2
