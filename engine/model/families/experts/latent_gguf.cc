#include "engine/model/families/experts/latent_gguf.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_rope.h"

namespace tandem::engine {
namespace {

constexpr std::string_view kQueryRank = "attention.q_lora_rank";
constexpr std::string_view kLatentRank = "attention.kv_lora_rank";
constexpr std::string_view kKeyLength = "attention.key_length";
constexpr std::string_view kValueLength = "attention.value_length";
constexpr std::string_view kHeadKey = "attention.key_length_mla";
constexpr std::string_view kHeadValue = "attention.value_length_mla";
constexpr std::string_view kLatentRotated = "rope.dimension_count";

}  // namespace

void ReadLatentGguf(const GgufMetadata& metadata, int64_t score, nlohmann::ordered_json& json) {
  const int64_t heads = metadata.RequiredInt("attention.head_count");
  json["hidden_size"] = metadata.RequiredInt("embedding_length");
  json["intermediate_size"] = metadata.RequiredInt("feed_forward_length");
  json["num_hidden_layers"] = GgufLayers(metadata);
  json["num_attention_heads"] = heads;
  json["num_key_value_heads"] = heads;
  json["max_position_embeddings"] = metadata.RequiredInt("context_length");
  const int64_t q_rank = metadata.Int(kQueryRank).value_or(0);
  if (q_rank > 0) {
    json["q_lora_rank"] = q_rank;
  } else {
    json["q_lora_rank"] = nullptr;
  }
  json["kv_lora_rank"] = metadata.RequiredInt(kLatentRank);
  // Older files have the sizes of a head under the keys that now have those of the latent.
  const auto head_key = metadata.Int(kHeadKey), head_value = metadata.Int(kHeadValue);
  const int64_t key = head_key ? *head_key : metadata.RequiredInt(kKeyLength);
  const int64_t rotated = metadata.RequiredInt(kLatentRotated);
  if (rotated < 2 || rotated >= key) {
    metadata.Unsupported(kLatentRotated, "is " + std::to_string(rotated) + " of a head with " +
                                             std::to_string(key) +
                                             " dimensions, of which a part must not rotate");
  }
  json["qk_rope_head_dim"] = rotated;
  json["qk_nope_head_dim"] = key - rotated;
  json["v_head_dim"] = head_value ? *head_value : metadata.RequiredInt(kValueLength);
  json["rms_norm_eps"] = Shortest(metadata.RequiredNumber(kGgufRmsNormEps));
  if (const auto theta = metadata.Number("rope.freq_base")) json["rope_theta"] = Shortest(*theta);
  json["attention_bias"] = false;
  json["hidden_act"] = "silu";
  ReadGgufExperts(metadata, {.count = "n_routed_experts"}, json);
  ReadGgufRouter(metadata, score, json);
  ReadGgufRopeScaling(metadata, GgufMscale::kTenths, json);
}

std::vector<GgufSetting> WriteLatentGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufSizes(c);
  const auto set = [&](std::string_view key, int64_t value) {
    for (GgufSetting& setting : settings) {
      if (setting.key == key) setting.value = static_cast<uint32_t>(value);
    }
  };
  const auto add = [&](std::string_view key, int64_t value) {
    settings.push_back({key, static_cast<uint32_t>(value)});
  };
  set("attention.head_count_kv", 1);  // readers attend to the latent, which all heads share
  add(kKeyLength, c.latent.kv_rank + c.latent.rope_dim);
  add(kValueLength, c.latent.kv_rank);
  add(kHeadKey, c.attention.head_dim);
  add(kHeadValue, c.attention.v_head_dim);
  if (c.latent.q_rank > 0) add(kQueryRank, c.latent.q_rank);
  add(kLatentRank, c.latent.kv_rank);
  add(kLatentRotated, c.latent.rope_dim);
  settings.push_back({kGgufRmsNormEps, c.norm_eps});
  settings.push_back({"rope.freq_base", static_cast<float>(c.rope_theta)});
  AddGgufRopeScaling(c.rope_scaling, settings, GgufMscale::kTenths);
  AddGgufExperts(c, settings);
  AddGgufRouter(c, settings);
  return settings;
}

std::string RequireInterleavedLatent(const ModelConfig& c) {
  return c.latent.interleaved ? "" : "'rope_interleave': false";
}

std::string RequireOneMscale(const ModelConfig& c) {
  const RopeScaling& rope = c.rope_scaling;
  if (rope.kind != RopeKind::kYarn || rope.factor <= 1) return "";
  if (rope.mscale_all_dim == 0) return "'rope_type': 'yarn' without 'mscale_all_dim'";
  return std::abs(rope.attention_factor - 1) < 1e-6 ? "" : "'mscale' other than 'mscale_all_dim'";
}

std::string LatentGgufCaveat(const ModelConfig& c) {
  std::string differences;
  const auto add = [&](const char* difference) {
    differences += (differences.empty() ? "" : "; ") + std::string(difference);
  };
  if (!RequireTop2Groups(c).empty()) {
    add("llama.cpp chooses a group of experts by the sum of its two best scores, this model by the "
        "best one");
  }
  if (c.latent.q_rank == 0 && c.n_layers != 26 && c.n_layers != 27) {
    add("llama.cpp loads a model whose queries have no latent only with the 26 or 27 layers of "
        "published ones");
  }
  // transformers' class has 1e-6 for the norms of the latents.
  if (std::abs(c.norm_eps - 1e-6f) > 1e-9f) {
    add("llama.cpp takes the model's epsilon for the norms of the latents, not 1e-06");
  }
  return differences;
}

}  // namespace tandem::engine
