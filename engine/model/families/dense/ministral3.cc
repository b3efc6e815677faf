// Ministral 3 (Mistral 2025), as transformers' Ministral3ForCausalLM: Mistral's blocks whose
// queries grow with the position. Also the text part of Mistral3ForConditionalGeneration: Ministral
// 3, and Mistral Small 3.1 and 3.2, whose queries do not grow.

#include <array>
#include <nlohmann/json.hpp>

#include "engine/base/quoted.h"
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
#include "engine/model/families/text_part.h"

namespace tandem::engine::ministral3 {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kArchitectures{
    "Ministral3ForCausalLM", "ministral3", "Mistral3ForConditionalGeneration", "mistral3"};

// The rope of the class. A file may leave it out.
Json DefaultRope() {
  return Json{{"rope_type", "yarn"},
              {"rope_theta", 1000000.0},
              {"factor", 16.0},
              {"original_max_position_embeddings", 16384},
              {"mscale_all_dim", 1.0},
              {"mscale", 1.0},
              {"llama_4_scaling_beta", 0.1}};
}

void ParseGrowth(const Json& rope, ModelConfig& c, const std::string& source) {
  c.query_growth = JsonNumberOr(rope, "llama_4_scaling_beta", 0, 0, 1e3, source);
  if (c.query_growth > 0) {
    c.query_growth_period =
        JsonInt(rope, "original_max_position_embeddings", 1, kMaxContext, source);
  }
}

ModelConfig ParseConfig(const Json& outer, const std::string& source) {
  Json json = TextConfig(outer, source);
  const bool has_text = outer.contains("text_config");
  const std::string type =
      JsonStringOr(json, "model_type", has_text ? "mistral" : "ministral3", source);
  if (type != "ministral3" && type != "mistral") {
    ThrowUnsupported(source, "'text_config' of model type " + Quoted(type) +
                                 "; supported are 'mistral' and 'ministral3'");
  }
  const bool grows = type == "ministral3";
  // The multimodal class ties by default; a stored head wins.
  if (has_text && !json.contains("tie_word_embeddings")) json["tie_word_embeddings"] = true;
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = grows ? 131072 : 32000,
                                .ffn_dim = 14336,
                                .n_layers = grows ? 34 : 32,
                                .n_kv_heads = 8,
                                .head_dim = grows ? 128 : 0,
                                .max_context_len = grows ? 262144 : 131072,
                                .norm_eps = grows ? 1e-5 : 1e-6,
                                .bos = {1},
                                .eos = {2}},
                               source);
  c.family = "ministral3";
  c.attention_bias = false;  // not a key of these classes
  const bool has_rope = IsGiven(json, "rope_parameters");
  if (grows && !has_rope && !json.contains("rope_scaling")) json["rope_parameters"] = DefaultRope();
  ParseRope(json, grows ? 1000000 : 10000, c, source);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    if (grows && json.contains(name) && json[name].is_object()) {
      ParseGrowth(json[name], c, source);
      break;
    }
  }
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  c.attention.window = ParseWindow(json, grows ? 0 : 4096, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "Ministral3ForCausalLM", "ministral3");
  Json rope = RopeScalingToJson(c.rope_scaling);
  if (rope.is_null()) rope = Json{{"rope_type", "default"}};
  rope["rope_theta"] = c.rope_theta;
  rope["llama_4_scaling_beta"] = c.query_growth;
  // The class divides by this number also without growth.
  if (!rope.contains("original_max_position_embeddings")) {
    rope["original_max_position_embeddings"] =
        c.query_growth > 0 ? c.query_growth_period : c.max_context_len;
  }
  for (const char* name : {"attention_bias", "rope_theta", "rope_scaling"}) json.erase(name);
  json["rope_parameters"] = std::move(rope);
  json["sliding_window"] = WindowToJson(c);
  return json;
}

LlamaTraits Traits(const ModelConfig&) { return {}; }

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.query_growth = 0.2;
  c.query_growth_period = 16;
  c.rope_scaling = {.kind = RopeKind::kYarn, .factor = 4, .original_max_positions = 16};
}

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  ReadGgufDecoder(metadata, json, {.mscale = GgufMscale::kWhole});
  json["hidden_act"] = "silu";
  json["sliding_window"] = nullptr;
  Json rope{{"rope_type", "default"}};
  if (json.contains("rope_scaling")) rope = json["rope_scaling"];
  if (const auto growth = metadata.Number("attention.temperature_scale")) {
    rope["llama_4_scaling_beta"] = Shortest(*growth);
  }
  if (json.contains("rope_theta")) rope["rope_theta"] = json["rope_theta"];
  json.erase("rope_scaling");
  json.erase("rope_theta");
  json["rope_parameters"] = std::move(rope);
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = WriteGgufDecoder(c);
  if (c.query_growth > 0) {
    settings.push_back({"attention.temperature_scale", static_cast<float>(c.query_growth)});
  }
  return settings;
}

// The file has one original length, which is also the period.
std::string RequireYarnPeriod(const ModelConfig& c) {
  const bool is_one = c.rope_scaling.kind == RopeKind::kYarn &&
                      c.rope_scaling.original_max_positions == c.query_growth_period;
  return c.query_growth == 0 || is_one ? "" : "'llama_4_scaling_beta' without 'rope_type': 'yarn'";
}

constexpr auto kGgufLimits = std::to_array<GgufLimit>(
    {RefuseLlama3Rope, RefuseUntruncatedYarn, RequireSilu, RefuseWindow, RequireYarnPeriod});
constexpr GgufArchitecture kGguf{.name = "mistral3",
                                 .parts = kGgufLlamaParts,
                                 .ends = kGgufDecoderEnds,
                                 .block = kGgufDecoderBlock,
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "ministral3",
    .models = "Ministral 3, Mistral Small 3",
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

}  // namespace tandem::engine::ministral3
