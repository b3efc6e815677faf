#include "engine/model/families/gguf_config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/model/families/gguf_rope.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
T Required(const GgufMetadata& metadata, std::string_view key, const std::optional<T>& value) {
  if (value) return *value;
  throw Error(ErrorCode::kDataLoss,
              metadata.source() + ": no key " + Quoted(metadata.FullName(key)));
}

GgufSetting Count(std::string_view key, int64_t value) {
  return {key, static_cast<uint32_t>(value)};
}

GgufSetting Float(std::string_view key, double value) { return {key, static_cast<float>(value)}; }

}  // namespace

int64_t GgufMetadata::RequiredInt(std::string_view key) const {
  return Required(*this, key, Int(key));
}

double GgufMetadata::RequiredNumber(std::string_view key) const {
  return Required(*this, key, Number(key));
}

double Shortest(double value) {
  const auto narrow = static_cast<float>(value);
  return narrow == value ? ShortestDouble(narrow) : value;
}

void ReadGgufDecoder(const GgufMetadata& metadata, Json& json, const GgufDecoderForm& form) {
  const int64_t heads = metadata.RequiredInt("attention.head_count");
  json["hidden_size"] = metadata.RequiredInt("embedding_length");
  json["intermediate_size"] = metadata.RequiredInt("feed_forward_length");
  json["num_hidden_layers"] = metadata.RequiredInt("block_count");
  json["num_attention_heads"] = heads;
  json["num_key_value_heads"] = metadata.Int("attention.head_count_kv").value_or(heads);
  json["max_position_embeddings"] = metadata.RequiredInt("context_length");
  const auto head_dim = metadata.Int("attention.key_length");
  if (head_dim) json["head_dim"] = *head_dim;
  if (const auto value_dim = metadata.Int("attention.value_length");
      value_dim && value_dim != head_dim) {
    metadata.Unsupported("attention.value_length",
                         "differs from the key length, which is not supported");
  }
  if (const auto rotated = metadata.Int("rope.dimension_count")) {
    const int64_t hidden = json["hidden_size"].get<int64_t>();
    const int64_t size = head_dim.value_or(heads > 0 ? hidden / heads : 0);
    if (*rotated != size && form.partial_rope) {
      if (*rotated < 2 || *rotated > size) {
        metadata.Unsupported("rope.dimension_count", "is not in [2, head size]");
      }
      json["partial_rotary_factor"] = RotaryFactor(*rotated, size);
    } else if (*rotated != size) {
      metadata.Unsupported("rope.dimension_count",
                           "differs from the head size: partial rotation is not supported");
    } else if (form.partial_rope) {
      json["partial_rotary_factor"] = 1.0;
    }
  }
  json[form.eps_field] = Shortest(metadata.RequiredNumber(form.eps_key));
  if (const auto theta = metadata.Number("rope.freq_base")) json["rope_theta"] = Shortest(*theta);
  json["attention_bias"] = metadata.HasTensor("blk.0.attn_q.bias");
  ReadGgufRopeScaling(metadata, form.has_mscale, json);
}

void ReadGgufWindows(const GgufMetadata& metadata, Json& json) {
  const int64_t window = metadata.Int("attention.sliding_window").value_or(0);
  json["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  const auto by_layer = metadata.Ints("attention.sliding_window_pattern");
  if (!by_layer) return;
  Json types = Json::array();
  for (const int64_t windowed : *by_layer) {
    types.push_back(windowed != 0 ? "sliding_attention" : "full_attention");
  }
  json["layer_types"] = std::move(types);
}

void ListFullLayersWithoutWindow(Json& json) {
  const int64_t n_layers = json["num_hidden_layers"].get<int64_t>();
  if (!json["sliding_window"].is_null() || n_layers <= 0 || n_layers > kMaxLayers) return;
  json["layer_types"] = std::vector<std::string>(static_cast<size_t>(n_layers), "full_attention");
}

void ReadGgufCap(const GgufMetadata& metadata, std::string_view key, const char* field,
                 Json& json) {
  const auto cap = metadata.Number(key);
  if (cap) json[field] = *cap > 0 ? Json(Shortest(*cap)) : Json(nullptr);
}

void ReadGgufQueryScalar(const GgufMetadata& metadata, int64_t layers_of_largest, Json& json) {
  const int64_t hidden = json["hidden_size"].get<int64_t>();
  const int64_t heads = json["num_attention_heads"].get<int64_t>();
  if (const auto scale = metadata.Number("attention.scale"); scale && *scale > 0) {
    // The key is a float; the scalar it was computed from is a whole number in every known model.
    const double scalar = 1 / (*scale * *scale), whole = std::round(scalar);
    json["query_pre_attn_scalar"] = std::abs(scalar - whole) < 1e-6 * scalar ? whole : scalar;
  } else if (json["num_hidden_layers"] == layers_of_largest || !json.contains("head_dim")) {
    // The scalar is the head size, except in the largest models, where it is hidden size / heads.
    json["query_pre_attn_scalar"] = heads > 0 ? hidden / heads : 0;
  } else {
    json["query_pre_attn_scalar"] = json["head_dim"];
  }
}

std::vector<GgufSetting> GgufSizes(const ModelConfig& config) {
  return {Count("vocab_size", config.vocab_size),
          Count("context_length", config.max_context_len),
          Count("embedding_length", config.hidden_dim),
          Count("block_count", config.n_layers),
          Count("feed_forward_length", config.ffn_dim),
          Count("attention.head_count", config.attention.n_heads),
          Count("attention.head_count_kv", config.attention.n_kv_heads)};
}

std::vector<GgufSetting> GgufDecoderSizes(const ModelConfig& config, const GgufDecoderForm& form) {
  std::vector<GgufSetting> settings = GgufSizes(config);
  settings.push_back(Count("attention.key_length", config.attention.head_dim));
  settings.push_back(Count("attention.value_length", config.attention.head_dim));
  settings.push_back(Float(form.eps_key, config.norm_eps));
  settings.push_back(Count("rope.dimension_count",
                           config.rotary_dim > 0 ? config.rotary_dim : config.attention.head_dim));
  settings.push_back(Float("rope.freq_base", config.rope_theta));
  AddGgufRopeScaling(config.rope_scaling, settings);
  return settings;
}

void AddGgufWindow(const ModelConfig& config, std::vector<GgufSetting>& settings) {
  if (HasWindow(config)) {
    settings.push_back(Count("attention.sliding_window", config.attention.window));
  }
}

void AddGgufWindowsByLayer(const ModelConfig& config, std::vector<GgufSetting>& settings) {
  if (!HasWindow(config)) return;
  AddGgufWindow(config, settings);
  std::vector<bool> windowed;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    windowed.push_back(IsWindowed(config, layer));
  }
  settings.push_back({"attention.sliding_window_pattern", std::move(windowed)});
}

void AddGgufCaps(const ModelConfig& config, std::vector<GgufSetting>& settings) {
  if (config.attention.soft_cap > 0) {
    settings.push_back(Float("attn_logit_softcapping", config.attention.soft_cap));
  }
  if (config.logit_cap > 0) settings.push_back(Float("final_logit_softcapping", config.logit_cap));
}

std::vector<GgufSetting> WriteGgufDecoder(const ModelConfig& config) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(config);
  AddGgufWindow(config, settings);
  AddGgufCaps(config, settings);
  return settings;
}

bool IsWindowed(const ModelConfig& config, int64_t layer) {
  return config.LayerAttention(layer).window > 0;
}

bool HasWindow(const ModelConfig& config) {
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    if (IsWindowed(config, layer)) return true;
  }
  return false;
}

bool FollowsPattern(const ModelConfig& config, int64_t every) {
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    if (IsWindowed(config, layer) == ((layer + 1) % every == 0)) return false;
  }
  return true;
}

}  // namespace tandem::engine
