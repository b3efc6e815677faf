// Mamba-2 (Dao and Gu 2024), as transformers' Mamba2ForCausalLM: pre-norm layers of one mixer each,
// and no attention.

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hybrid/mamba_gguf.h"
#include "engine/model/families/hybrid/mamba_parts.h"

namespace tandem::engine::mamba2 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Mamba2ForCausalLM", "mamba2"};
constexpr MambaKeys kKeys{.n_heads = "num_heads",
                          .head_dim = "head_dim",
                          .n_groups = "n_groups",
                          .state_dim = "state_size",
                          .kernel = "conv_kernel",
                          .conv_bias = "use_conv_bias",
                          .expand = "expand",
                          .proj_bias = "use_bias",
                          .heads = 128,
                          .dim = 64,
                          .groups = 8,
                          .state = 128};
// The class has no context length. A state has none either; this one bounds the tables of a
// sequence.
constexpr int64_t kContext = 1 << 18;
// Nothing reads these heads.
constexpr AttentionSpec kNoAttention{.n_heads = 1, .n_kv_heads = 1, .head_dim = 2};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  Json decoder = json;
  for (const char* field : {"head_dim", "num_attention_heads", "num_key_value_heads",
                            "attention_bias", "intermediate_size"}) {
    decoder.erase(field);
  }
  if (json.contains("layer_norm_epsilon")) decoder["rms_norm_eps"] = json["layer_norm_epsilon"];
  ModelConfig c = ParseDecoder(decoder,
                               {.vocab_size = 32768,
                                .n_layers = 64,
                                .n_heads = 1,
                                .head_dim = 2,
                                .max_context_len = kContext,
                                .norm_eps = 1e-5,
                                .bos = {0},
                                .eos = {2}},
                               source);
  c.family = "mamba2";
  c.attention = kNoAttention;
  RequireMambaSilu(json, "hidden_act", source);
  ParseMamba(json, kKeys, c, source);
  c.ffn_dim = c.recurrent.scan.outputs();
  c.recurrent.layers.assign(static_cast<size_t>(c.n_layers), true);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Mamba2ForCausalLM", "mamba2");
  for (const char* field :
       {"intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
        "rms_norm_eps", "rope_theta", "rope_scaling", "attention_bias"}) {
    json.erase(field);
  }
  json["layer_norm_epsilon"] = ShortestDouble(c.norm_eps);
  WriteMamba(c, kKeys, json);
  return json;
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("backbone.embeddings.weight", c.vocab_size, c.hidden_dim));
  specs.back().aliases = {"backbone.embedding.weight"};
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = "backbone.layers." + std::to_string(layer) + ".";
    specs.push_back(VectorSpec(prefix + "norm.weight", c.hidden_dim));
    ListMamba(specs, prefix + "mixer.", c);
  }
  ListHead(specs, VectorSpec("backbone.norm_f.weight", c.hidden_dim), c);
  return specs;
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = ops.Embed(embedding);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const Act h = ops.RmsNorm(x, w.Take(), c.norm_eps);
    x = ops.Add(x, RunMamba(ops, w, c, h));
  }
  RunHead(ops, w, embedding, c, x);
}

std::vector<RopeSpec> ListRopes(const ModelConfig&) { return {}; }

void ShapeTiny(ModelConfig& c) {
  c.n_layers = 3;
  c.attention = kNoAttention;
  ShapeTinyMamba(c);
  c.ffn_dim = c.recurrent.scan.outputs();
  c.recurrent.in_bias = c.recurrent.out_bias = true;
  c.recurrent.layers.assign(static_cast<size_t>(c.n_layers), true);
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  const int64_t hidden = metadata.RequiredInt("embedding_length");
  json["hidden_size"] = hidden;
  json["num_hidden_layers"] = GgufLayers(metadata);
  json["max_position_embeddings"] = metadata.RequiredInt("context_length");
  json["layer_norm_epsilon"] = Shortest(metadata.RequiredNumber(kGgufRmsNormEps));
  ReadMambaGguf(metadata, kKeys, json);
  json["expand"] = MambaGgufExpansion(metadata, hidden);
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufSizes(c);
  for (GgufSetting& setting : settings) {
    const bool is_unused =
        setting.key == "feed_forward_length" || setting.key.starts_with("attention.head_count");
    if (is_unused) setting.value = uint32_t{0};  // but required
  }
  settings.push_back({kGgufRmsNormEps, c.norm_eps});
  AddMambaGguf(c, settings);
  return settings;
}

constexpr auto kGgufParts =
    JoinGgufParts(std::to_array<GgufPart>({{"attn_norm", "norm"}}), kMambaGgufParts);
constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RefuseScanBiases, RefuseTimeStepLimit, RequireDividedScan});
constexpr GgufArchitecture kGguf{.name = "mamba2",
                                 .parts = kGgufParts,
                                 .ends = kBackboneGgufEnds,
                                 .block = kBackboneGgufBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "mamba2",
    .models = "Mamba-2, Mamba-Codestral",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
};

}  // namespace tandem::engine::mamba2
