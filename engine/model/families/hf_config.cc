#include "engine/model/families/hf_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/model/families/hf_rope.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// Enough for any model; limits the work per decoding step that a hostile list could cause.
constexpr size_t kMaxTokenList = 64;
constexpr int64_t kMaxWindow = int64_t{1} << 40;
constexpr const char* kWindowedLayer = "sliding_attention";
constexpr const char* kFullLayer = "full_attention";

bool IsNull(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_null();
}

// Head counts. An explicit null means Llama's default (as many as query heads), even where the
// class has a different one.
AttentionSpec ParseHeads(const Json& json, const HfDefaults& defaults, int64_t hidden_dim,
                         const std::string& source) {
  AttentionSpec a;
  a.n_heads = JsonIntOr(json, "num_attention_heads", defaults.n_heads, 1, kMaxHeads, source);
  const bool as_many = defaults.n_kv_heads == 0 || IsNull(json, "num_key_value_heads");
  a.n_kv_heads = JsonIntOr(json, "num_key_value_heads", as_many ? a.n_heads : defaults.n_kv_heads,
                           1, a.n_heads, source);
  if (a.n_heads % a.n_kv_heads != 0) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field 'num_key_value_heads' must divide " + std::to_string(a.n_heads) +
                    " ('num_attention_heads'), got " + std::to_string(a.n_kv_heads));
  }
  const bool as_wide = defaults.head_dim == 0 || IsNull(json, "head_dim");
  a.head_dim = JsonIntOr(json, "head_dim", as_wide ? hidden_dim / a.n_heads : defaults.head_dim, 1,
                         kMaxHeadDim, source);
  if (a.head_dim < 2 || a.head_dim > kMaxHeadDim || a.head_dim % 2 != 0 ||
      a.n_heads * a.head_dim > kMaxWidth) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'head_dim' must be even, in [2, " +
                                          std::to_string(kMaxHeadDim) + "] and at most " +
                                          std::to_string(kMaxWidth) + " over all heads, got " +
                                          std::to_string(a.head_dim));
  }
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  return a;
}

}  // namespace

std::vector<TokenId> ParseTokenList(const Json& config, const char* field, int64_t vocab_size,
                                    const std::vector<TokenId>& fallback,
                                    const std::string& source) {
  const auto found = config.find(field);
  if (found == config.end()) {
    std::vector<TokenId> known;
    for (const TokenId token : fallback) {
      if (token < vocab_size) known.push_back(token);
    }
    return known;
  }
  if (found->is_null()) return {};
  std::vector<TokenId> tokens;
  if (!found->is_array()) {
    tokens.push_back(static_cast<TokenId>(JsonInt(config, field, 0, vocab_size - 1, source)));
    return tokens;
  }
  if (found->size() > kMaxTokenList) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field '" + field + "' lists " + std::to_string(found->size()) +
                    " tokens, more than the limit of " + std::to_string(kMaxTokenList));
  }
  for (const Json& element : *found) {
    Json wrapped = Json::object();
    wrapped[field] = element;
    tokens.push_back(static_cast<TokenId>(JsonInt(wrapped, field, 0, vocab_size - 1, source)));
  }
  return tokens;
}

TokenId FirstToken(const std::vector<TokenId>& tokens) {
  return tokens.empty() ? -1 : tokens.front();
}

Json TokenListToJson(const std::vector<TokenId>& tokens) {
  if (tokens.empty()) return nullptr;
  if (tokens.size() == 1) return tokens.front();
  return tokens;
}

ModelConfig ParseDecoder(const Json& json, const HfDefaults& defaults, const std::string& source) {
  ModelConfig c;
  c.vocab_size = JsonIntOr(json, "vocab_size", defaults.vocab_size, 1, kMaxVocab, source);
  c.hidden_dim = JsonIntOr(json, "hidden_size", defaults.hidden_dim, 1, kMaxWidth, source);
  c.ffn_dim = JsonIntOr(json, "intermediate_size", defaults.ffn_dim, 1, kMaxWidth, source);
  c.n_layers = JsonIntOr(json, "num_hidden_layers", defaults.n_layers, 1, kMaxLayers, source);
  c.max_context_len =
      JsonIntOr(json, "max_position_embeddings", defaults.max_context_len, 1, kMaxContext, source);
  c.norm_eps =
      static_cast<float>(JsonNumberOr(json, "rms_norm_eps", defaults.norm_eps, 0, 1, source));
  c.tied_embeddings = JsonBoolOr(json, "tie_word_embeddings", defaults.tied_embeddings, source);
  c.bos_token =
      FirstToken(ParseTokenList(json, "bos_token_id", c.vocab_size, defaults.bos, source));
  c.eos_tokens = ParseTokenList(json, "eos_token_id", c.vocab_size, defaults.eos, source);
  c.attention = ParseHeads(json, defaults, c.hidden_dim, source);
  c.attention_bias = JsonBoolOr(json, "attention_bias", false, source);
  return c;
}

Json WriteDecoder(const ModelConfig& c, const char* architecture, const char* model_type) {
  return Json{{"architectures", Json::array({architecture})},
              {"model_type", model_type},
              {"vocab_size", c.vocab_size},
              {"hidden_size", c.hidden_dim},
              {"intermediate_size", c.ffn_dim},
              {"num_hidden_layers", c.n_layers},
              {"num_attention_heads", c.attention.n_heads},
              {"num_key_value_heads", c.attention.n_kv_heads},
              {"head_dim", c.attention.head_dim},
              {"hidden_act", ActivationName(c.activation)},
              {"max_position_embeddings", c.max_context_len},
              {"rms_norm_eps", ShortestDouble(c.norm_eps)},
              {"rope_theta", c.rope_theta},
              {"rope_scaling", RopeScalingToJson(c.rope_scaling)},
              {"attention_bias", c.attention_bias},
              {"tie_word_embeddings", c.tied_embeddings},
              {"bos_token_id", c.bos_token < 0 ? Json(nullptr) : Json(c.bos_token)},
              {"eos_token_id", TokenListToJson(c.eos_tokens)}};
}

Activation ParseActivation(const Json& config, const char* field, const char* fallback,
                           const std::string& source) {
  const std::string name = JsonStringOr(config, field, fallback, source);
  if (name == "silu" || name == "swish") return Activation::kSilu;
  // Both names mean the same formula.
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "relu2") return Activation::kRelu2;
  ThrowUnsupported(source,
                   "'" + std::string(field) + "' " + Quoted(name) +
                       "; supported are 'silu', 'gelu_pytorch_tanh', 'gelu', 'relu' and 'relu2'");
}

const char* ActivationName(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return "silu";
    case Activation::kGeluTanh:
      return "gelu_pytorch_tanh";
    case Activation::kRelu:
      return "relu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kRelu2:
      return "relu2";
    case Activation::kClampedSwiglu:
      break;  // not a name of transformers; its family writes the config
  }
  TANDEM_CHECK(false);
}

int64_t ParseWindow(const Json& config, int64_t fallback, const std::string& source) {
  if (IsNull(config, "sliding_window")) return 0;
  return JsonIntOr(config, "sliding_window", fallback, 1, kMaxWindow, source);
}

void ParseLayerTypes(const Json& json, const std::function<bool(int64_t layer)>& by_default,
                     ModelConfig& config, const std::string& source) {
  const auto types = json.find("layer_types");
  const bool given = types != json.end() && !types->is_null();
  if (given && (!types->is_array() || static_cast<int64_t>(types->size()) != config.n_layers)) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'layer_types' must be a list of " +
                                          std::to_string(config.n_layers) + " names");
  }
  config.windowed_layers.clear();
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    if (!given) {
      config.windowed_layers.push_back(config.attention.window > 0 && by_default(layer));
      continue;
    }
    Json wrapped = Json::object();
    wrapped["layer_types"] = (*types)[static_cast<size_t>(layer)];
    const std::string type = JsonStringOr(wrapped, "layer_types", "", source);
    if (type != kWindowedLayer && type != kFullLayer) {
      ThrowUnsupported(source, "layer type " + Quoted(type) + " in 'layer_types'" +
                                   "; supported are '" + kFullLayer + "' and '" + kWindowedLayer +
                                   "'");
    }
    config.windowed_layers.push_back(type == kWindowedLayer);
    if (type == kWindowedLayer && config.attention.window == 0) {
      throw Error(ErrorCode::kDataLoss, source + ": field 'layer_types' has a '" + kWindowedLayer +
                                            "', but field 'sliding_window' is missing");
    }
  }
  const auto& windowed = config.windowed_layers;
  if (std::find(windowed.begin(), windowed.end(), true) == windowed.end()) {
    config.attention.window = 0;
    config.windowed_layers.clear();
  }
}

Json LayerTypesToJson(const ModelConfig& config) {
  Json types = Json::array();
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    types.push_back(config.LayerAttention(layer).window > 0 ? kWindowedLayer : kFullLayer);
  }
  return types;
}

void ParseQwenWindows(const Json& json, ModelConfig& config, const std::string& source) {
  const bool used = JsonBoolOr(json, "use_sliding_window", false, source);
  config.attention.window = used ? ParseWindow(json, 4096, source) : 0;
  const int64_t first = JsonIntOr(json, "max_window_layers", 28, 0, kMaxLayers, source);
  ParseLayerTypes(
      json, [=](int64_t layer) { return layer >= first; }, config, source);
}

void WriteQwenWindows(const ModelConfig& config, Json& json) {
  const int64_t window = config.attention.window;
  int64_t first = 0;
  while (first < config.n_layers && config.LayerAttention(first).window == 0) ++first;
  json["use_sliding_window"] = window > 0;
  json["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  json["max_window_layers"] = first;
  json["layer_types"] = LayerTypesToJson(config);
}

void ParseGemmaAttention(const Json& json, const GemmaDefaults& defaults, ModelConfig& config,
                         const std::string& source) {
  config.query_scalar = JsonNumberOr(json, "query_pre_attn_scalar", 256, 1e-6, 1e9, source);
  config.attention.scale = static_cast<float>(1 / std::sqrt(config.query_scalar));
  const auto cap = [&](const char* field, float fallback) {
    if (IsNull(json, field)) return 0.0f;
    return static_cast<float>(JsonNumberOr(json, field, fallback, 1e-6, 1e9, source));
  };
  config.attention.soft_cap = cap("attn_logit_softcapping", defaults.attention_cap);
  config.logit_cap = cap("final_logit_softcapping", defaults.logit_cap);
  config.attention.window = ParseWindow(json, kGemmaWindow, source);
  ParseLayerTypes(json, defaults.windowed, config, source);
  if (JsonBoolOr(json, "use_bidirectional_attention", false, source)) {
    ThrowUnsupported(source, "'use_bidirectional_attention': true");
  }
}

void WriteGemmaAttention(const ModelConfig& config, Json& json) {
  const auto cap = [](float value) { return value > 0 ? Json(ShortestDouble(value)) : Json(); };
  const double scalar = config.query_scalar > 0 ? config.query_scalar
                                                : static_cast<double>(config.attention.head_dim);
  json["hidden_activation"] = ActivationName(config.activation);
  // The transformers class expects an integer; only our own models have other numbers.
  json["query_pre_attn_scalar"] =
      scalar == std::floor(scalar) ? Json(static_cast<int64_t>(scalar)) : Json(scalar);
  json["attn_logit_softcapping"] = cap(config.attention.soft_cap);
  json["final_logit_softcapping"] = cap(config.logit_cap);
  // transformers' classes build a mask of the window even where no layer uses it.
  const int64_t window = config.attention.window;
  json["sliding_window"] = window > 0 ? window : kGemmaWindow;
  json["layer_types"] = LayerTypesToJson(config);
}

double ShortestDouble(float value) {
  std::array<char, 32> text{};
  *std::to_chars(text.data(), text.data() + text.size() - 1, value).ptr = '\0';
  return std::strtod(text.data(), nullptr);
}

void ThrowUnsupported(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, source + ": unsupported: " + what);
}

}  // namespace tandem::engine
