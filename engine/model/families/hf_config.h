#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "engine/base/model_limits.h"
#include "engine/model/families/config.h"

namespace tandem::engine {

// Shared parsing of the families' config.json files. All functions throw kDataLoss / kUnsupported
// naming `source` and the field; null counts as absent, as in transformers.

// Upper bounds of a config, far above any known model. They keep products of two sizes within int64
// and limit the allocations a hostile number can cause.
inline constexpr int64_t kMaxLayers = kMaxModelLayers;
inline constexpr int64_t kMaxWidth = 1 << 18;  // hidden_dim, ffn_dim, heads * head_dim
inline constexpr int64_t kMaxHeads = 4096;
inline constexpr int64_t kMaxHeadDim = 1024;
inline constexpr int64_t kMaxVocab = 1 << 22;
inline constexpr int64_t kMaxContext = 1 << 22;

// `eos_token_id`: an int, a list of ints, or absent.
std::vector<TokenId> ParseTokenList(const nlohmann::ordered_json& config, const char* field,
                                    int64_t vocab_size, const std::vector<TokenId>& fallback,
                                    const std::string& source);
// `bos_token_id`; -1 when there is none.
TokenId FirstToken(const std::vector<TokenId>& tokens);
nlohmann::ordered_json TokenListToJson(const std::vector<TokenId>& tokens);

// Values of absent keys: the defaults of the family's class in transformers.
struct HfDefaults {
  int64_t vocab_size = 32000;
  int64_t hidden_dim = 4096;
  int64_t ffn_dim = 11008;
  int64_t n_layers = 32;
  int64_t n_heads = 32;
  int64_t n_kv_heads = 0;  // 0: n_heads
  int64_t head_dim = 0;    // 0: hidden_dim / n_heads
  int64_t max_context_len = 0;
  double norm_eps = 1e-6;
  bool tied_embeddings = false;
  std::vector<TokenId> bos = {};
  std::vector<TokenId> eos = {};
};
// Parses the keys that decoders from Llama to Gemma share: sizes, heads, norm, context, tokens.
// attention.scale is 1 / sqrt(head_dim).
ModelConfig ParseDecoder(const nlohmann::ordered_json& config, const HfDefaults& defaults,
                         const std::string& source);
// Writes the same keys and `rope_theta`, `attention_bias` and `hidden_act`, after the names of the
// class.
nlohmann::ordered_json WriteDecoder(const ModelConfig& config, const char* architecture,
                                    const char* model_type);

// The activation in `field`, by transformers' names; `fallback` when the field is absent.
Activation ParseActivation(const nlohmann::ordered_json& config, const char* field,
                           const char* fallback, const std::string& source);
const char* ActivationName(Activation activation);

// Gemma's window where no field states one.
inline constexpr int64_t kGemmaWindow = 4096;
// Attention keys of Gemma 2 and 3: `query_pre_attn_scalar`, the soft caps, windows by layer.
struct GemmaDefaults {
  float attention_cap = 0;
  float logit_cap = 0;
  std::function<bool(int64_t layer)> windowed = {};
};
void ParseGemmaAttention(const nlohmann::ordered_json& json, const GemmaDefaults& defaults,
                         ModelConfig& config, const std::string& source);
void WriteGemmaAttention(const ModelConfig& config, nlohmann::ordered_json& json);

// The double that prints as the float does: 1e-05, not 9.99999974737875e-06.
double ShortestDouble(float value);

// Whether the field is there and not null.
bool IsGiven(const nlohmann::ordered_json& object, const char* field);
bool IsNull(const nlohmann::ordered_json& object, const char* field);

// A limit above 0: 0 (none) for null, `fallback` when absent.
float ParseCap(const nlohmann::ordered_json& json, const char* field, float fallback,
               const std::string& source);
nlohmann::ordered_json CapToJson(float cap);
// The share of values that training drops.
float ParseDropout(const nlohmann::ordered_json& json, const char* field, double fallback,
                   const std::string& source);

// Keys of families whose norms are LayerNorms: reads the norms' epsilon from `field`.
void ParseNormEps(const nlohmann::ordered_json& json, const char* field, double fallback,
                  ModelConfig& config, const std::string& source);
// As WriteDecoder, with the epsilon in `eps_field` and without the keys of Llama's class.
nlohmann::ordered_json WriteLayerNormDecoder(const ModelConfig& config, const char* architecture,
                                             const char* model_type, const char* eps_field);

// Refuses a model whose `field` is not `value`, which is its default.
void RequireBool(const nlohmann::ordered_json& json, const char* field, bool value,
                 const std::string& source);
void RequireName(const nlohmann::ordered_json& json, const char* field, const char* value,
                 const std::string& source);
// Refuses a model whose `field` is neither absent nor 0.
void RequireZero(const nlohmann::ordered_json& json, const char* field, const std::string& source);
// Refuses heads that together are not as wide as the model.
void RequireFullWidthHeads(const ModelConfig& config, const std::string& source);
// The same for classes whose heads all have keys of their own, under their names of the fields.
void RequireKeysOfEachHead(const ModelConfig& config, const char* heads_field,
                           const char* width_field, const std::string& source);

[[noreturn]] void ThrowUnsupported(const std::string& source, const std::string& what);

}  // namespace tandem::engine
