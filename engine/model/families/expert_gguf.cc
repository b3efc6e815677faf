#include "engine/model/families/expert_gguf.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/model/families/expert_parts.h"
#include "engine/model/families/gguf_config.h"

namespace tandem::engine {
namespace {

constexpr std::string_view kScaleKey = "expert_weights_scale";
constexpr std::string_view kNormKey = "expert_weights_norm";
constexpr std::string_view kWidthKey = "expert_feed_forward_length";
constexpr std::string_view kGroupsKey = "expert_group_count";
constexpr std::string_view kTopGroupsKey = "expert_group_used_count";

}  // namespace

void ReadGgufExperts(const GgufMetadata& metadata, const ExpertKeys& keys,
                     nlohmann::ordered_json& json) {
  json[keys.count] = metadata.RequiredInt("expert_count");
  json[keys.top_k] = metadata.RequiredInt("expert_used_count");
}

void ReadGgufExpertWidths(const GgufMetadata& metadata, const ExpertKeys& keys,
                          nlohmann::ordered_json& json) {
  json[keys.ffn] = metadata.RequiredInt(kWidthKey);
  if (*keys.shared_ffn != 0) json[keys.shared_ffn] = metadata.RequiredInt(kGgufSharedWidth);
}

void AddGgufExperts(const ModelConfig& config, std::vector<GgufSetting>& settings) {
  const auto add = [&](std::string_view key, int64_t value) {
    settings.push_back({key, static_cast<uint32_t>(value)});
  };
  add("expert_count", config.experts.router.n_experts);
  add("expert_used_count", config.experts.router.top_k);
  add(kWidthKey, config.experts.ffn_dim);
}

void AddGgufSharedExperts(const ModelConfig& config, std::vector<GgufSetting>& settings) {
  AddGgufExperts(config, settings);
  settings.push_back({kGgufSharedWidth, static_cast<uint32_t>(config.experts.shared_ffn_dim)});
}

std::vector<GgufSetting> WriteGgufExpertDecoder(const ModelConfig& config) {
  std::vector<GgufSetting> settings = WriteGgufDecoder(config);
  AddGgufExperts(config, settings);
  return settings;
}

int64_t GgufScore(const GgufMetadata& metadata, int64_t fallback) {
  const int64_t score = metadata.Int(kGgufScore).value_or(0);
  return score == 0 ? fallback : score;
}

void ReadGgufRouter(const GgufMetadata& metadata, int64_t score, nlohmann::ordered_json& json) {
  if (const int64_t stated = GgufScore(metadata, score); stated != score) {
    metadata.Unsupported(kGgufScore, "is " + std::to_string(stated) + "; this family has " +
                                         std::to_string(score) +
                                         (score == kGgufSigmoid ? ", sigmoid" : ", softmax"));
  }
  const double scale = metadata.Number(kScaleKey).value_or(0);
  json["routed_scaling_factor"] = scale == 0 ? 1 : Shortest(scale);  // 0 stands for none
  json["norm_topk_prob"] = metadata.Bool(kNormKey).value_or(false);
  json["n_group"] = std::max<int64_t>(metadata.Int(kGroupsKey).value_or(1), 1);
  json["topk_group"] = std::max<int64_t>(metadata.Int(kTopGroupsKey).value_or(1), 1);
  json["n_shared_experts"] = metadata.Int(kGgufSharedCount).value_or(0);
  json["first_k_dense_replace"] = metadata.Int(kGgufFirstDense).value_or(0);
  json["moe_intermediate_size"] = metadata.RequiredInt(kWidthKey);
}

void AddGgufRouter(const ModelConfig& config, std::vector<GgufSetting>& settings) {
  const ExpertsConfig& e = config.experts;
  const auto add = [&](std::string_view key, int64_t value) {
    settings.push_back({key, static_cast<uint32_t>(value)});
  };
  add(kGgufSharedCount, e.shared_ffn_dim / e.ffn_dim);
  add(kGgufFirstDense, FirstExpertLayer(config));
  add(kGgufScore, e.router.score == RouterScore::kSigmoid ? kGgufSigmoid : kGgufSoftmax);
  settings.push_back({kScaleKey, e.router.scale});
  settings.push_back({kNormKey, e.router.normalise});
  if (e.router.n_groups <= 1) return;
  add(kGroupsKey, e.router.n_groups);
  add(kTopGroupsKey, e.router.top_groups);
}

std::string RefuseDenseLayers(const ModelConfig& config) {
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    if (!config.HasExperts(layer)) return "layers without experts";
  }
  return "";
}

std::string RequireDenseLayersFirst(const ModelConfig& config) {
  for (int64_t layer = FirstExpertLayer(config); layer < config.n_layers; ++layer) {
    if (!config.HasExperts(layer)) return "layers without experts behind the first one with them";
  }
  return "";
}

std::string RequireTop2Groups(const ModelConfig& config) {
  const RouterSpec& router = config.experts.router;
  return router.n_groups <= 1 || router.group_score == GroupScore::kTop2Sum
             ? ""
             : "groups of experts chosen by their best one";
}

std::string RequireNormalisedExperts(const ModelConfig& config) {
  return config.experts.router.normalise ? "" : "'norm_topk_prob': false";
}

std::string RefuseNormalisedExperts(const ModelConfig& config) {
  return config.experts.router.normalise ? "'norm_topk_prob': true" : "";
}

}  // namespace tandem::engine
