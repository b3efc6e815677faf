#include "engine/model/families/granite_parts.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"

namespace tandem::engine {

using Json = nlohmann::ordered_json;

ModelConfig ParseGranite(const Json& json, const std::string& source) {
  ModelConfig c = ParseDecoder(json, {.max_context_len = 2048, .bos = {1}, .eos = {2}}, source);
  ParseRope(json, 10000, c, source);
  c.activation = ParseActivation(json, "hidden_act", "silu", source);
  const auto multiplier = [&](const char* field) {
    return JsonNumberOr(json, field, 1, 1e-6, 1e6, source);
  };
  c.embedding_multiplier = static_cast<float>(multiplier("embedding_multiplier"));
  c.residual_multiplier = static_cast<float>(multiplier("residual_multiplier"));
  c.attention.scale = static_cast<float>(multiplier("attention_multiplier"));
  c.logit_multiplier = static_cast<float>(1 / multiplier("logits_scaling"));
  return c;
}

double GraniteLogitsScaling(const ModelConfig& c) {
  const double scaling = 1 / static_cast<double>(c.logit_multiplier);
  for (int digits = 1; digits < std::numeric_limits<double>::max_digits10; ++digits) {
    std::array<char, 32> text{};
    *std::to_chars(text.data(), text.data() + text.size() - 1, scaling, std::chars_format::general,
                   digits)
         .ptr = '\0';
    const double rounded = std::strtod(text.data(), nullptr);
    if (static_cast<float>(1 / rounded) == c.logit_multiplier) return rounded;
  }
  return scaling;
}

void WriteGraniteMultipliers(const ModelConfig& c, Json& json) {
  json["embedding_multiplier"] = ShortestDouble(c.embedding_multiplier);
  json["residual_multiplier"] = ShortestDouble(c.residual_multiplier);
  json["attention_multiplier"] = ShortestDouble(c.attention.scale);
  json["logits_scaling"] = GraniteLogitsScaling(c);
}

void ReadGgufMultipliers(const GgufMetadata& metadata, Json& json) {
  const auto read = [&](std::string_view key, const char* field) {
    if (const auto value = metadata.Number(key)) json[field] = Shortest(*value);
  };
  read("embedding_scale", "embedding_multiplier");
  read("residual_scale", "residual_multiplier");
  read("attention.scale", "attention_multiplier");
  read("logit_scale", "logits_scaling");
}

void AddGgufMultipliers(const ModelConfig& config, std::vector<GgufSetting>& settings) {
  settings.push_back({"embedding_scale", config.embedding_multiplier});
  settings.push_back({"residual_scale", config.residual_multiplier});
  settings.push_back({"attention.scale", config.attention.scale});
  settings.push_back({"logit_scale", static_cast<float>(GraniteLogitsScaling(config))});
}

void ShapeTinyGranite(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.attention.scale = 0.125f;
  c.embedding_multiplier = 12;
  c.residual_multiplier = 0.22f;
  c.logit_multiplier = 0.25f;
}

void ParseGraniteExperts(const Json& json, ModelConfig& c, const std::string& source) {
  c.experts = ParseExperts(json, kGraniteExpertKeys, source);
  c.experts.router.softmax_of_chosen = true;
}

void AddGraniteStacks(const ModelConfig& c, std::vector<WeightSpec>& specs) {
  constexpr ExpertStack kStack{.gate_up = "input_linear.weight", .down = "output_linear.weight"};
  for (WeightSpec& spec : specs) {
    if (const auto part = StackedPart(spec, kStack, c)) spec.parts = {*part};
  }
}

void ShapeTinyGraniteExperts(ModelConfig& c) {
  ShapeTinyExperts(c);
  c.experts.router.softmax_of_chosen = true;
}

}  // namespace tandem::engine
