#include "engine/model/families/dense/gemma3n_gguf.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/model/families/dense/gemma_layer_parts.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"

namespace tandem::engine::gemma3n {
namespace {

using Json = nlohmann::ordered_json;

constexpr GgufDecoderForm kForm{.any_mlp_width = true};
constexpr std::string_view kSparsityKey = "activation_sparsity_scale";
constexpr std::string_view kStreams = "altup.num_inputs";
constexpr std::string_view kActive = "altup.active_idx";

// llama.cpp computes with these numbers of the published models, whatever the file says.
constexpr int64_t kUsualStreams = 4, kUsualRank = 64, kUsualLayerDim = 256;
constexpr int64_t kUsualOwnKeys = 20, kUsualPattern = 5, kUsualSparseLayers = 10;
constexpr double kUsualShare = 0.95;
constexpr float kUsualCap = 30;

int64_t UsualShared(int64_t n_layers) { return std::max<int64_t>(n_layers - kUsualOwnKeys, 0); }

// The share that has these deviations, with as few digits as give the same float.
double ShareOf(float deviations) {
  if (!(deviations > -10)) return 0;
  const double share = 0.5 * std::erfc(-static_cast<double>(deviations) / std::sqrt(2.0));
  for (double unit = 10; unit <= 1e9; unit *= 10) {
    const double rounded = std::round(share * unit) / unit;
    if (rounded > 0 && rounded < 1 && DeviationsOf(rounded) == deviations) return rounded;
  }
  return share;
}

// The shares of all layers. Each takes hundreds of erfc, so a list of another length ends here.
Json ReadSparsity(const GgufMetadata& metadata, const std::vector<float>& deviations) {
  const auto n_layers = static_cast<size_t>(GgufLayers(metadata));
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kDataLoss,
                metadata.source() + ": key '" + metadata.FullName(kSparsityKey) + "' " + what);
  };
  if (deviations.size() != n_layers) {
    refuse("must have one number for each of the " + std::to_string(n_layers) + " layers, got " +
           std::to_string(deviations.size()));
  }
  Json shares = Json::array();
  for (const float z : deviations) {
    if (std::isnan(z)) refuse("must hold numbers, got NaN");
    shares.push_back(ShareOf(z));
  }
  return shares;
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, kForm);
  json["hidden_activation"] = "gelu_pytorch_tanh";
  ReadGgufLocalTheta(metadata, json);
  ReadGgufWindows(metadata, json);
  ReadGgufGemmaLayers(metadata, UsualShared(json["num_hidden_layers"].get<int64_t>()), json);
  json["hidden_size_per_layer_input"] = metadata.Int(kGgufLayerInput).value_or(kUsualLayerDim);
  json["altup_num_inputs"] = metadata.Int(kStreams).value_or(kUsualStreams);
  json["altup_active_idx"] = metadata.Int(kActive).value_or(0);
  json["laurel_rank"] = metadata.TensorRows("blk.0.laurel_l.weight").value_or(kUsualRank);
  if (const auto deviations = metadata.Floats(kSparsityKey)) {
    json["activation_sparsity_pattern"] = ReadSparsity(metadata, *deviations);
  }
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  const GemmaParts& g = c.gemma;
  std::vector<GgufSetting> settings = GgufDecoderSizes(c);
  const std::vector<uint32_t> widths(g.ffn_dims.begin(), g.ffn_dims.end());
  if (std::ranges::count(widths, widths.front()) != c.n_layers) {
    std::ranges::find(settings, "feed_forward_length", &GgufSetting::key)->value = widths;
  }
  AddGgufGemmaLayers(c, settings);
  settings.push_back({kActive, static_cast<uint32_t>(g.active_stream)});
  settings.push_back({kStreams, static_cast<uint32_t>(g.n_streams)});
  std::vector<float> deviations;
  for (size_t layer = 0; layer < g.sparsity.size(); ++layer) {
    const bool is_sparse = g.sparsity[layer] > 0;
    deviations.push_back(is_sparse ? g.cuts[layer] : -std::numeric_limits<float>::infinity());
  }
  settings.push_back({kSparsityKey, std::move(deviations)});
  return settings;
}

// llama.cpp requires keys and values of every layer.
std::vector<GgufFiller> Fillers(const ModelConfig& c) {
  std::vector<GgufFiller> fillers;
  const int64_t rows = c.attention.n_kv_heads * c.attention.head_dim;
  for (int64_t layer = c.n_layers - c.gemma.n_shared_kv_layers; layer < c.n_layers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    fillers.push_back({block + "attn_k.weight", {rows, c.hidden_dim}});
    fillers.push_back({block + "attn_v.weight", {rows, c.hidden_dim}});
    fillers.push_back({block + "attn_k_norm.weight", {c.attention.head_dim}});
  }
  return fillers;
}

bool IsIgnored(const GgufMetadata& metadata, std::string_view tensor) {
  return IsGgufSharedKey(metadata, UsualShared(GgufLayers(metadata)), tensor);
}

bool HasUsualSparsity(const ModelConfig& c) {
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const double usual = layer < kUsualSparseLayers ? kUsualShare : 0;
    if (c.gemma.sparsity[static_cast<size_t>(layer)] != usual) return false;
  }
  return true;
}

std::string Caveat(const ModelConfig& c) {
  const GemmaParts& g = c.gemma;
  const bool is_usual =
      g.n_streams == kUsualStreams && g.active_stream == 0 && g.laurel_rank == kUsualRank &&
      g.per_layer_dim == kUsualLayerDim && g.n_shared_kv_layers == UsualShared(c.n_layers) &&
      FollowsPattern(c, kUsualPattern) && HasUsualSparsity(c) && c.logit_cap == kUsualCap &&
      std::ranges::count(g.ffn_dims, g.ffn_dims.front()) == c.n_layers;
  if (is_usual) return "";
  return "llama.cpp takes the streams, ranks, windows and shared layers of Gemma 3n from the "
         "published models (E2B, E4B), and this model has others";
}

std::string RequireActiveScale(const ModelConfig& c) {
  return c.gemma.scales_active ? "" : "'altup_correct_scale': false";
}

constexpr auto kParts = JoinGgufParts(
    kGgufNormedGemmaParts, std::to_array<GgufPart>({
                               {"altup_router_norm", "altup.router_norm"},
                               {"altup_router", "altup.modality_router"},
                               {"altup_predict_coef", "altup.prediction_coefs"},
                               {"altup_correct_coef", "altup.correction_coefs"},
                               {"altup_correct_scale.weight", "altup.correct_output_scale"},
                               {"laurel_l", "laurel.linear_left"},
                               {"laurel_r", "laurel.linear_right"},
                               {"laurel_post_norm", "laurel.post_laurel_norm"},
                           }));
constexpr auto kEnds = JoinGgufParts(
    kGgufLayerInputEnds, std::to_array<GgufPart>({
                             {"altup_proj", "model.altup_projections.{E}"},
                             {"altup_unembd_proj", "model.altup_unembed_projections.{E}"},
                         }));
constexpr auto kLimits =
    std::to_array<GgufLimit>({RefuseLlama3Rope, RefuseUntruncatedYarn, RefuseYarn, RequireTanhGelu,
                              RefuseAttentionBias, RequireActiveScale});

}  // namespace

extern constinit const GgufArchitecture kGguf{.name = "gemma3n",
                                              .parts = kParts,
                                              .ends = kEnds,
                                              .block = kGgufDecoderBlock,
                                              .sentencepiece_class = "GemmaTokenizer",
                                              .read_config = ReadGguf,
                                              .write_config = WriteGguf,
                                              .limits = kLimits,
                                              .caveat = Caveat,
                                              .fillers = Fillers,
                                              .ignores = IsIgnored};

}  // namespace tandem::engine::gemma3n
