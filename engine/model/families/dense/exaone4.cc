// EXAONE 4 (LG AI Research 2025), as transformers' Exaone4ForCausalLM: norms after attention and
// MLP only, a norm on each head of q and k; where layers have windows, those without have no rope.

#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/gguf_parts.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/llama_decoder.h"
#include "engine/model/families/maxtext_rules.h"

namespace tandem::engine::exaone4 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"Exaone4ForCausalLM", "exaone4"};

constexpr int64_t kUsualPattern = 4;

// A `sliding_window_pattern` is a number, or letters for layers: L has a window, G has none.
std::function<bool(int64_t)> WindowPattern(const Json& json, const std::string& source) {
  const auto found = json.find("sliding_window_pattern");
  if (found != json.end() && found->is_string()) {
    const std::string letters = found->get<std::string>();
    if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos) {
      throw Error(ErrorCode::kDataLoss,
                  source + ": field 'sliding_window_pattern' must be a number or letters L and G");
    }
    return
        [=](int64_t layer) { return letters[static_cast<size_t>(layer) % letters.size()] == 'L'; };
  }
  const int64_t every =
      JsonIntOr(json, "sliding_window_pattern", kUsualPattern, 0, kMaxLayers, source);
  return [=](int64_t layer) { return every > 0 && (layer + 1) % every != 0; };
}

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 102400,
                                .ffn_dim = 16384,
                                .n_kv_heads = 32,
                                .max_context_len = 2048,
                                .norm_eps = 1e-5,
                                .bos = {0},
                                .eos = {2}},
                               source);
  c.family = "exaone4";
  c.attention_bias = false;  // not a key of this class
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.attention.window = ParseWindow(json, 4096, source);
  const int64_t window = c.attention.window;
  ParseLayerTypes(json, WindowPattern(json, source), c, source);
  if (window > 0 && c.attention.window == 0) {
    ThrowUnsupported(source, "'sliding_window' without a layer of type 'sliding_attention'");
  }
  if (c.attention.window > 0) SkipRopeOnFullLayers(c);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Exaone4ForCausalLM", "exaone4");
  json.erase("attention_bias");
  WriteWindows(c, json);
  return json;
}

LlamaTraits Traits(const ModelConfig&) { return {.qk_norm = QkNorm::kHeads, .norms = kNormsAfter}; }

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  WindowEveryOtherLayer(c);
  SkipRopeOnFullLayers(c);
}

// Readers know windows only in the largest model, by its number of layers.
constexpr int64_t kLayersWithWindows = 64;

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, {.bias_field = nullptr});
  ReadGgufWindows(metadata, json);
  ListFullLayersWithoutWindow(json);
  json["hidden_act"] = "silu";
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufDecoderSizes(c);
  AddGgufWindowsByLayer(c, settings);
  return settings;
}

std::string RequireKnownWindows(const ModelConfig& c) {
  if (!HasWindow(c)) return "";
  const bool is_known = c.n_layers == kLayersWithWindows && FollowsPattern(c, kUsualPattern);
  return is_known ? "" : "a sliding window";
}

constexpr auto kGgufLimits =
    std::to_array<GgufLimit>({RequireSilu, RefuseUntruncatedYarn, RequireKnownWindows});
constexpr GgufArchitecture kGguf{.name = "exaone4",
                                 .parts = kGgufNormsAfterParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "exaone4",
    .models = "EXAONE 4",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListLlamaWeights<Traits>,
    .list_ropes = ListLlamaRopes,
    .forward = LlamaForward<Traits>,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .lora = &kDecoderLoraNames,
};

}  // namespace tandem::engine::exaone4
