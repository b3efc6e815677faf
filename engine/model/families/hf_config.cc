#include "engine/model/families/hf_config.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hf_rope.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// Enough for any model; limits the work per decoding step that a hostile list could cause.
constexpr size_t kMaxTokenList = 64;

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

void ParseGemmaAttention(const Json& json, const GemmaDefaults& defaults, ModelConfig& config,
                         const std::string& source) {
  config.query_scalar = JsonNumberOr(json, "query_pre_attn_scalar", 256, 1e-6, 1e9, source);
  config.attention.scale = static_cast<float>(1 / std::sqrt(config.query_scalar));
  config.attention.soft_cap =
      ParseCap(json, "attn_logit_softcapping", defaults.attention_cap, source);
  config.logit_cap = ParseCap(json, "final_logit_softcapping", defaults.logit_cap, source);
  config.attention.window = ParseWindow(json, kGemmaWindow, source);
  ParseLayerTypes(json, defaults.windowed, config, source);
  RequireBool(json, "use_bidirectional_attention", false, source);
}

void WriteGemmaAttention(const ModelConfig& config, Json& json) {
  const double scalar = config.query_scalar > 0 ? config.query_scalar
                                                : static_cast<double>(config.attention.head_dim);
  json["hidden_activation"] = ActivationName(config.activation);
  // The transformers class expects an integer; only our own models have other numbers.
  json["query_pre_attn_scalar"] =
      scalar == std::floor(scalar) ? Json(static_cast<int64_t>(scalar)) : Json(scalar);
  json["attn_logit_softcapping"] = CapToJson(config.attention.soft_cap);
  json["final_logit_softcapping"] = CapToJson(config.logit_cap);
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

bool IsGiven(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && !found->is_null();
}

bool IsNull(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_null();
}

float ParseCap(const Json& json, const char* field, float fallback, const std::string& source) {
  if (IsNull(json, field)) return 0;
  return static_cast<float>(JsonNumberOr(json, field, fallback, 1e-6, 1e9, source));
}

Json CapToJson(float cap) { return cap > 0 ? Json(ShortestDouble(cap)) : Json(nullptr); }

float ParseDropout(const Json& json, const char* field, double fallback,
                   const std::string& source) {
  return static_cast<float>(JsonNumberOr(json, field, fallback, 0, 0.999, source));
}

void ParseNormEps(const Json& json, const char* field, double fallback, ModelConfig& config,
                  const std::string& source) {
  config.norm_eps = static_cast<float>(JsonNumberOr(json, field, fallback, 0, 1, source));
}

Json WriteLayerNormDecoder(const ModelConfig& config, const char* architecture,
                           const char* model_type, const char* eps_field) {
  Json json = WriteDecoder(config, architecture, model_type);
  json.erase("rms_norm_eps");
  json.erase("attention_bias");
  json[eps_field] = ShortestDouble(config.norm_eps);
  return json;
}

void RequireBool(const Json& json, const char* field, bool value, const std::string& source) {
  if (JsonBoolOr(json, field, value, source) == value) return;
  ThrowUnsupported(source, "'" + std::string(field) + "': " + (value ? "false" : "true"));
}

void RequireName(const Json& json, const char* field, const char* value,
                 const std::string& source) {
  const std::string name = JsonStringOr(json, field, value, source);
  if (name == value) return;
  ThrowUnsupported(
      source, "'" + std::string(field) + "' " + Quoted(name) + "; supported is '" + value + "'");
}

void RequireZero(const Json& json, const char* field, const std::string& source) {
  if (JsonNumberOr(json, field, 0, 0, 1, source) == 0) return;
  ThrowUnsupported(source, "'" + std::string(field) + "' other than 0");
}

void RequireFullWidthHeads(const ModelConfig& config, const std::string& source) {
  const int64_t attended = config.attention.n_heads * config.attention.head_dim;
  if (attended == config.hidden_dim) return;
  throw Error(ErrorCode::kDataLoss,
              source + ": field 'hidden_size' must be heads times head size, " +
                  std::to_string(attended) + ", got " + std::to_string(config.hidden_dim));
}

void RequireKeysOfEachHead(const ModelConfig& config, const char* heads_field,
                           const char* width_field, const std::string& source) {
  const AttentionSpec& a = config.attention;
  if (a.n_kv_heads == a.n_heads && a.n_heads * a.head_dim == config.hidden_dim) return;
  throw Error(ErrorCode::kDataLoss, source + ": field '" + heads_field + "' must divide '" +
                                        width_field + "' (" + std::to_string(config.hidden_dim) +
                                        "), with a key head for each, got " +
                                        std::to_string(a.n_heads));
}

void ThrowUnsupported(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, source + ": unsupported: " + what);
}

}  // namespace tandem::engine
