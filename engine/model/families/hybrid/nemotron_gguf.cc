#include "engine/model/families/hybrid/nemotron_gguf.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/families/expert_gguf.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hybrid/mamba_gguf.h"

namespace tandem::engine::nemotron_h {
namespace {

using Json = nlohmann::ordered_json;

// llama.cpp requires this epsilon and takes that of the RMS norms, which files also have.
constexpr GgufDecoderForm kGgufForm{.partial_rope = true,
                                    .heads_by_layer = true,
                                    .eps_key = kGgufLayerNormEps,
                                    .eps_field = "layer_norm_epsilon"};
// Of all published models; readers have none.
constexpr float kLeastStep = 0.001f;

constexpr std::string_view kLatentWidth = "moe_latent_size";

// Layers without heads and MLP are scans.
void ReadLayers(const GgufMetadata& metadata, const char* with_mlp, Json& json) {
  const std::vector<bool> no_heads = ReadGgufLayersWithoutHeads(metadata);
  const std::vector<bool> no_mlp = ReadGgufLayersWithoutMlp(metadata);
  json["layers_block_type"] = Json::array();
  for (size_t i = 0; i < no_heads.size(); ++i) {
    json["layers_block_type"].push_back(!no_heads[i] ? kFullLayer
                                        : !no_mlp[i] ? with_mlp
                                                     : "linear_attention");
  }
}

void ReadSizes(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kGgufForm);
  ReadMambaGguf(metadata, kMambaKeys, json);
  json["mlp_hidden_act"] = "relu2";
  json["mlp_bias"] = false;
  json["time_step_min"] = ShortestDouble(kLeastStep);
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadSizes(metadata, json);
  ReadLayers(metadata, "mlp", json);
}

void ReadExpertGguf(const GgufMetadata& metadata, Json& json) {
  ReadSizes(metadata, json);
  ReadLayers(metadata, "moe", json);
  ReadGgufExperts(metadata, kExpertKeys, json);
  ReadGgufRouter(metadata, kGgufSigmoid, json);
  ReadGgufExpertWidths(metadata, kExpertKeys, json);
  const int64_t latent = metadata.Int(kLatentWidth).value_or(0);
  json["moe_latent_size"] = latent > 0 ? Json(latent) : Json(nullptr);
}

// `width` is that of the layers for which `has_mlp` holds; others have 0.
std::vector<GgufSetting> WriteSizes(const ModelConfig& config, int64_t width,
                                    bool (*has_mlp)(const ModelConfig&, int64_t)) {
  ModelConfig c = config;
  c.ffn_dim = width;
  std::vector<GgufSetting> settings = GgufDecoderSizes(c, kGgufForm);
  SetGgufHeadsByLayer(
      c,
      [](const ModelConfig& each, int64_t layer) {
        return MixerOf(each, layer) == Mixer::kAttention;
      },
      settings);
  SetGgufMlpByLayer(c, has_mlp, settings);
  settings.push_back({kGgufRmsNormEps, c.norm_eps});
  AddMambaGguf(c, settings);
  return settings;
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  return WriteSizes(c, c.ffn_dim,
                    [](const ModelConfig& each, int64_t layer) { return each.IsMlp(layer); });
}

std::vector<GgufSetting> WriteExpertGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings =
      WriteSizes(c, c.experts.ffn_dim,
                 [](const ModelConfig& each, int64_t layer) { return each.HasExperts(layer); });
  AddGgufSharedExperts(c, settings);
  settings.push_back({kGgufSharedCount, uint32_t{1}});
  settings.push_back({"expert_weights_norm", c.experts.router.normalise});
  settings.push_back({"expert_weights_scale", c.experts.router.scale});
  settings.push_back({"expert_group_count", uint32_t{1}});
  if (c.experts.latent_dim > 0) {
    settings.push_back({kLatentWidth, static_cast<uint32_t>(c.experts.latent_dim)});
  }
  return settings;
}

std::string RequireRelu2(const ModelConfig& c) {
  return c.activation == Activation::kRelu2 ? "" : "'mlp_hidden_act' other than 'relu2'";
}
std::string RequireUsualStep(const ModelConfig& c) {
  return c.recurrent.scan.least_dt == kLeastStep ? "" : "'time_step_min' other than 0.001";
}
// Of a file with experts, every MLP is a mixture of them.
std::string RefusePlainMlps(const ModelConfig& c) {
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    if (c.IsMlp(layer)) return "layers with a plain MLP beside layers with experts";
  }
  return "";
}
std::string RefuseGroups(const ModelConfig& c) {
  return c.experts.router.n_groups > 1 ? "groups of experts" : "";
}
std::string Caveat(const ModelConfig&) {
  return "llama.cpp has no least time step ('time_step_min')";
}

constexpr auto kAttentionParts = std::to_array<GgufPart>({
    {"attn_norm", "norm"},
    {"attn_q", "mixer.q_proj"},
    {"attn_k", "mixer.k_proj"},
    {"attn_v", "mixer.v_proj"},
    {"attn_output", "mixer.o_proj"},
});
constexpr auto kParts = JoinGgufParts(kAttentionParts, kMambaGgufParts,
                                      std::to_array<GgufPart>({
                                          {"ffn_up", "mixer.up_proj"},
                                          {"ffn_down", "mixer.down_proj"},
                                      }));
constexpr auto kExpertParts =
    JoinGgufParts(kAttentionParts, kMambaGgufParts,
                  std::to_array<GgufPart>({
                      {"ffn_gate_inp", "mixer.gate"},
                      {"exp_probs_b.bias", "mixer.gate.e_score_correction_bias"},
                      {"ffn_up_exps", "mixer.experts.{E}.up_proj"},
                      {"ffn_down_exps", "mixer.experts.{E}.down_proj"},
                      {"ffn_up_shexp", "mixer.shared_experts.up_proj"},
                      {"ffn_down_shexp", "mixer.shared_experts.down_proj"},
                      {"ffn_latent_down", "mixer.fc1_latent_proj"},
                      {"ffn_latent_up", "mixer.fc2_latent_proj"},
                  }));
constexpr auto kLimits = std::to_array<GgufLimit>(
    {RequireRelu2, RefuseMlpBias, RequireUsualStep, RefuseScanBiases, RequireDividedScan});
constexpr auto kExpertLimits =
    std::to_array<GgufLimit>({RefusePlainMlps, RefuseGroups, RequireRelu2, RefuseMlpBias,
                              RequireUsualStep, RefuseScanBiases, RequireDividedScan});
constexpr GgufArchitecture kWithExperts{.name = "nemotron_h_moe",
                                        .parts = kExpertParts,
                                        .ends = kBackboneGgufEnds,
                                        .block = kBackboneGgufBlock,
                                        .read_config = ReadExpertGguf,
                                        .write_config = WriteExpertGguf,
                                        .limits = kExpertLimits,
                                        .has_experts = true,
                                        .caveat = Caveat};

}  // namespace

extern constinit const GgufArchitecture kGguf{.name = "nemotron_h",
                                              .parts = kParts,
                                              .ends = kBackboneGgufEnds,
                                              .block = kBackboneGgufBlock,
                                              .read_config = ReadGguf,
                                              .write_config = WriteGguf,
                                              .limits = kLimits,
                                              .caveat = Caveat,
                                              .with_experts = &kWithExperts};

}  // namespace tandem::engine::nemotron_h
