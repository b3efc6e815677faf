#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_rope.h"

namespace tandem::engine {

// Parts of GgufArchitecture::read_config and write_config that families share.

// Keys of several architectures.
inline constexpr std::string_view kGgufRmsNormEps = "attention.layer_norm_rms_epsilon";
inline constexpr std::string_view kGgufLayerNormEps = "attention.layer_norm_epsilon";
inline constexpr std::string_view kGgufWindow = "attention.sliding_window";
inline constexpr std::string_view kGgufWindowPattern = "attention.sliding_window_pattern";
inline constexpr std::string_view kGgufLocalTheta = "rope.freq_base_swa";

// The double that prints like the nearest float: GGUF keys hold 32-bit floats such as 1e-05.
double Shortest(double value);

// A family's differences from the keys that the decoders from Llama to Gemma share.
struct GgufDecoderForm {
  bool partial_rope = false;  // heads may be rotated in part
  GgufMscale mscale = GgufMscale::kNone;
  bool heads_by_layer = false;  // or the MLP's width: 0 in layers without them
  bool any_mlp_width = false;   // by layer; config.json has the list
  std::string_view eps_key = kGgufRmsNormEps;
  const char* eps_field = "rms_norm_eps";
  const char* bias_field = "attention_bias";  // of q, k and v; null: the class has no such key
};
// Adds sizes, heads, norm and rope under their shared names. Throws kUnsupported for experts, and
// for heads that are rotated in part unless `form` has them.
void ReadGgufDecoder(const GgufMetadata& metadata, nlohmann::ordered_json& json,
                     const GgufDecoderForm& form = {});
// The same for Llama's architecture: with its activation, and whether the MLP has biases.
void ReadGgufLlama(const GgufMetadata& metadata, nlohmann::ordered_json& json);
// The number of layers, without those that only predict further tokens. Throws kUnsupported when
// none is left.
int64_t GgufLayers(const GgufMetadata& metadata);
// By layer, whether its number of key heads is 0: it has no attention. Throws kDataLoss when the
// key is no list with one number per layer.
std::vector<bool> ReadGgufLayersWithoutHeads(const GgufMetadata& metadata);
// The same for the width of the MLP.
std::vector<bool> ReadGgufLayersWithoutMlp(const GgufMetadata& metadata);
// Adds `sliding_window`; null for none.
void ReadGgufWindow(const GgufMetadata& metadata, nlohmann::ordered_json& json);
// Adds `sliding_window` and, where the file has them by layer, `layer_types`.
void ReadGgufWindows(const GgufMetadata& metadata, nlohmann::ordered_json& json);
// Adds `layer_types` where there is no window. For classes of transformers whose default types have
// one. REQUIRES: ReadGgufDecoder, ReadGgufWindows.
void ListFullLayersWithoutWindow(nlohmann::ordered_json& json);
// Adds `rope_local_base_freq`, the base of windowed layers, where the file has it.
void ReadGgufLocalTheta(const GgufMetadata& metadata, nlohmann::ordered_json& json);
// Adds `field`, or null for a number that is not above 0. Adds nothing when the key is absent.
void ReadGgufCap(const GgufMetadata& metadata, std::string_view key, const char* field,
                 nlohmann::ordered_json& json);
// Adds query_pre_attn_scalar, by which Gemma 2 and 3 scale attention scores. Without a key, the
// number of layers identifies the largest model.
void ReadGgufQueryScalar(const GgufMetadata& metadata, int64_t layers_of_largest,
                         nlohmann::ordered_json& json);

// Settings that every architecture has.
std::vector<GgufSetting> GgufSizes(const ModelConfig& config);
// Sizes, head lengths, the norm's epsilon and the rope.
std::vector<GgufSetting> GgufDecoderSizes(const ModelConfig& config,
                                          const GgufDecoderForm& form = {});
// Writes the number of key heads by layer: 0 where `has_heads` is false.
void SetGgufHeadsByLayer(const ModelConfig& config, bool (*has_heads)(const ModelConfig&, int64_t),
                         std::vector<GgufSetting>& settings);
// Writes the width of the MLP by layer: 0 where `has_mlp` is false.
void SetGgufMlpByLayer(const ModelConfig& config, bool (*has_mlp)(const ModelConfig&, int64_t),
                       std::vector<GgufSetting>& settings);
// The window, if a layer has one.
void AddGgufWindow(const ModelConfig& config, std::vector<GgufSetting>& settings);
// The window and its layers, if a layer has one.
void AddGgufWindowsByLayer(const ModelConfig& config, std::vector<GgufSetting>& settings);
// The soft caps above 0.
void AddGgufCaps(const ModelConfig& config, std::vector<GgufSetting>& settings);
// All of the above in this order.
std::vector<GgufSetting> WriteGgufDecoder(const ModelConfig& config);

bool IsWindowed(const ModelConfig& config, int64_t layer);
bool HasWindow(const ModelConfig& config);
// Whether every layer has a window except each `every`th.
bool FollowsPattern(const ModelConfig& config, int64_t every);

}  // namespace tandem::engine
