#include "engine/model/families/expert_gguf.h"

#include <nlohmann/json.hpp>

namespace tandem::engine {

void ReadGgufExperts(const GgufMetadata& metadata, const char* count_field,
                     nlohmann::ordered_json& json) {
  json[count_field] = metadata.RequiredInt("expert_count");
  json["num_experts_per_tok"] = metadata.RequiredInt("expert_used_count");
}

void AddGgufExperts(const ModelConfig& config, std::vector<GgufSetting>& settings) {
  const auto add = [&](std::string_view key, int64_t value) {
    settings.push_back({key, static_cast<uint32_t>(value)});
  };
  add("expert_count", config.experts.router.n_experts);
  add("expert_used_count", config.experts.router.top_k);
  add("expert_feed_forward_length", config.experts.ffn_dim);
}

std::string RefuseDenseLayers(const ModelConfig& config) {
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    if (!config.HasExperts(layer)) return "layers without experts";
  }
  return "";
}

std::string RequireNormalisedExperts(const ModelConfig& config) {
  return config.experts.router.normalise ? "" : "'norm_topk_prob': false";
}

std::string RefuseNormalisedExperts(const ModelConfig& config) {
  return config.experts.router.normalise ? "'norm_topk_prob': true" : "";
}

}  // namespace tandem::engine
