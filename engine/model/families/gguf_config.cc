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
#include "engine/model/families/hf_layers.h"
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

constexpr std::string_view kKeyHeads = "attention.head_count_kv";
constexpr std::string_view kMlpWidth = "feed_forward_length";

// The number that all layers share for which it is not 0.
int64_t NumberOfLayers(const GgufMetadata& metadata, std::string_view key,
                       const std::vector<int64_t>& by_layer) {
  int64_t heads = 0;
  for (const int64_t n : by_layer) {
    if (n == 0) continue;
    if (heads != 0 && n != heads) {
      metadata.Unsupported(key, "differs between layers that have it, which is not supported");
    }
    heads = n;
  }
  return heads;
}

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

int64_t GgufLayers(const GgufMetadata& metadata) {
  constexpr std::string_view kPredicting = "nextn_predict_layers";
  const int64_t all = metadata.RequiredInt("block_count");
  const int64_t predicting = metadata.Int(kPredicting).value_or(0);
  if (predicting < 0 || (predicting > 0 && predicting >= all)) {
    metadata.Unsupported(kPredicting, "is " + std::to_string(predicting) + " of " +
                                          std::to_string(all) + " blocks, which leaves no model");
  }
  return all - predicting;
}

namespace {

std::vector<bool> LayersWithout(const GgufMetadata& metadata, std::string_view key) {
  const auto numbers = metadata.Ints(key);
  const int64_t n_layers = GgufLayers(metadata);
  if (!numbers || static_cast<int64_t>(numbers->size()) < n_layers) {
    throw Error(ErrorCode::kDataLoss,
                metadata.source() + ": key " + Quoted(metadata.FullName(key)) +
                    " must list one number for each of " + std::to_string(n_layers) + " layers");
  }
  std::vector<bool> without;
  for (int64_t i = 0; i < n_layers; ++i) without.push_back((*numbers)[static_cast<size_t>(i)] == 0);
  return without;
}

void SetByLayer(std::string_view key, const ModelConfig& config, int64_t number,
                bool (*has)(const ModelConfig&, int64_t), std::vector<GgufSetting>& settings) {
  std::vector<uint32_t> numbers;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    numbers.push_back(has(config, layer) ? static_cast<uint32_t>(number) : 0);
  }
  for (GgufSetting& setting : settings) {
    if (setting.key == key) setting.value = numbers;
  }
}

}  // namespace

std::vector<bool> ReadGgufLayersWithoutHeads(const GgufMetadata& metadata) {
  return LayersWithout(metadata, kKeyHeads);
}

std::vector<bool> ReadGgufLayersWithoutMlp(const GgufMetadata& metadata) {
  return LayersWithout(metadata, kMlpWidth);
}

void ReadGgufDecoder(const GgufMetadata& metadata, Json& json, const GgufDecoderForm& form) {
  const int64_t heads = metadata.RequiredInt("attention.head_count");
  json["hidden_size"] = metadata.RequiredInt("embedding_length");
  const auto widths =
      form.heads_by_layer || form.any_mlp_width ? metadata.Ints(kMlpWidth) : std::nullopt;
  if (widths && form.any_mlp_width) {
    json["intermediate_size"] = *widths;
  } else {
    json["intermediate_size"] =
        widths ? NumberOfLayers(metadata, kMlpWidth, *widths) : metadata.RequiredInt(kMlpWidth);
  }
  json["num_hidden_layers"] = GgufLayers(metadata);
  json["num_attention_heads"] = heads;
  const auto by_layer = form.heads_by_layer ? metadata.Ints(kKeyHeads) : std::nullopt;
  json["num_key_value_heads"] = by_layer ? NumberOfLayers(metadata, kKeyHeads, *by_layer)
                                         : metadata.Int(kKeyHeads).value_or(heads);
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
  if (form.bias_field != nullptr) json[form.bias_field] = metadata.HasTensor("blk.0.attn_q.bias");
  ReadGgufRopeScaling(metadata, form.mscale, json);
}

void ReadGgufLlama(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json);
  json["hidden_act"] = "silu";
  json["mlp_bias"] = metadata.HasTensor("blk.0.ffn_up.bias");
}

void ReadGgufWindow(const GgufMetadata& metadata, Json& json) {
  const int64_t window = metadata.Int(kGgufWindow).value_or(0);
  json["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
}

void ReadGgufWindows(const GgufMetadata& metadata, Json& json) {
  ReadGgufWindow(metadata, json);
  const auto by_layer = metadata.Ints(kGgufWindowPattern);
  if (!by_layer) return;
  json["layer_types"] =
      LayerKindsToJson(std::vector<bool>(by_layer->begin(), by_layer->end()), kWindowedLayer);
}

void ListFullLayersWithoutWindow(Json& json) {
  const int64_t n_layers = json["num_hidden_layers"].get<int64_t>();
  if (!json["sliding_window"].is_null() || n_layers <= 0 || n_layers > kMaxLayers) return;
  json["layer_types"] = std::vector<std::string>(static_cast<size_t>(n_layers), kFullLayer);
}

void ReadGgufLocalTheta(const GgufMetadata& metadata, Json& json) {
  if (const auto theta = metadata.Number(kGgufLocalTheta)) {
    json["rope_local_base_freq"] = Shortest(*theta);
  }
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
          Count(kMlpWidth, config.ffn_dim),
          Count("attention.head_count", config.attention.n_heads),
          Count(kKeyHeads, config.attention.n_kv_heads)};
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

void SetGgufHeadsByLayer(const ModelConfig& config, bool (*has_heads)(const ModelConfig&, int64_t),
                         std::vector<GgufSetting>& settings) {
  SetByLayer(kKeyHeads, config, config.attention.n_kv_heads, has_heads, settings);
}

void SetGgufMlpByLayer(const ModelConfig& config, bool (*has_mlp)(const ModelConfig&, int64_t),
                       std::vector<GgufSetting>& settings) {
  SetByLayer(kMlpWidth, config, config.ffn_dim, has_mlp, settings);
}

void AddGgufWindow(const ModelConfig& config, std::vector<GgufSetting>& settings) {
  if (HasWindow(config)) {
    settings.push_back(Count(kGgufWindow, config.attention.window));
  }
}

void AddGgufWindowsByLayer(const ModelConfig& config, std::vector<GgufSetting>& settings) {
  if (!HasWindow(config)) return;
  AddGgufWindow(config, settings);
  settings.push_back({kGgufWindowPattern, WindowedLayers(config)});
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
