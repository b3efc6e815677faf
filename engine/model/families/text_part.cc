#include "engine/model/families/text_part.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// The names inside a multimodal model of a tensor of its text part.
std::vector<std::string> NamesInside(const std::string& name) {
  std::vector<std::string> names = {"language_model." + name};
  if (!name.starts_with("model.")) return names;
  const std::string inner = name.substr(6);
  names.push_back("model.language_model." + inner);
  names.push_back("model.text_model." + inner);
  return names;
}

// A multimodal class of transformers, and the type of its text part where the file names none.
// Families that list their multimodal class themselves are not here.
struct Multimodal {
  std::string_view architecture, model_type, text_type;
  bool is_flat = false;  // older files have the keys of the text part outside of 'text_config'
};

constexpr auto kMultimodal = std::to_array<Multimodal>({
    {"AyaVisionForConditionalGeneration", "aya_vision", "cohere2"},
    {"Cohere2VisionForConditionalGeneration", "cohere2_vision", "cohere2"},
    {"Exaone4_5_ForConditionalGeneration", "exaone4_5", "exaone4"},
    {"FastVlmForConditionalGeneration", "fast_vlm", "qwen2"},
    {"Glm46VForConditionalGeneration", "glm46v", "glm4v_text"},
    {"Glm4vForConditionalGeneration", "glm4v", "glm4v_text"},
    {"Glm4vMoeForConditionalGeneration", "glm4v_moe", "glm4v_moe_text"},
    {"GlmOcrForConditionalGeneration", "glm_ocr", "glm_ocr_text"},
    {"GotOcr2ForConditionalGeneration", "got_ocr2", "qwen2"},
    {"Granite4VisionForConditionalGeneration", "granite4_vision", "granite4_vision_text"},
    {"GraniteDoclingForConditionalGeneration", "granite_docling", "granite_docling_text"},
    {"GraniteSpeechForConditionalGeneration", "granite_speech", "granite"},
    {"Idefics2ForConditionalGeneration", "idefics2", "mistral"},
    {"Idefics3ForConditionalGeneration", "idefics3", "llama"},
    {"InternVLForConditionalGeneration", "internvl", "qwen2"},
    {"Kimi_K25ForConditionalGeneration", "kimi_k25", "deepseek_v3"},
    {"Lfm2VlForConditionalGeneration", "lfm2_vl", "lfm2"},
    {"LightOnOcrForConditionalGeneration", "lighton_ocr", "qwen3"},
    {"LlavaForConditionalGeneration", "llava", "llama"},
    {"LlavaNextForConditionalGeneration", "llava_next", "llama"},
    {"LlavaNextVideoForConditionalGeneration", "llava_next_video", "llama"},
    {"LlavaOnevisionForConditionalGeneration", "llava_onevision", "qwen2"},
    {"MiniCPMV4_6ForConditionalGeneration", "minicpmv4_6", "qwen3_5_text"},
    {"Ovis2ForConditionalGeneration", "ovis2", "qwen2"},
    {"PerceptionLMForConditionalGeneration", "perception_lm", "llama"},
    {"Qwen2AudioForConditionalGeneration", "qwen2_audio", "qwen2"},
    {"Qwen2VLForConditionalGeneration", "qwen2_vl", "qwen2_vl_text", true},
    {"Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", "qwen2_5_vl_text", true},
    {"Qwen3VLForConditionalGeneration", "qwen3_vl", "qwen3_vl_text"},
    {"Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", "qwen3_vl_moe_text"},
    {"SmolVLMForConditionalGeneration", "smolvlm", "llama"},
    {"VideoLlama3ForConditionalGeneration", "video_llama_3", "qwen2"},
    {"VipLlavaForConditionalGeneration", "vipllava", "llama"},
    {"VoxtralForConditionalGeneration", "voxtral", "llama"},
});

// A text part whose model type is its own, and whose arithmetic is a family's. `defaults` are the
// values of absent keys where the two classes differ.
struct TextType {
  std::string_view type, family_type, defaults;
};

constexpr std::string_view kQwen2Vl = R"({"vocab_size": 152064, "hidden_size": 8192,
    "intermediate_size": 29568, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_window_layers": 80,
    "rope_theta": 1000000.0})";
constexpr std::string_view kGlm4v = R"({"max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
    "head_dim": null, "partial_rotary_factor": 1.0, "attention_bias": true})";

constexpr auto kTextTypes = std::to_array<TextType>({
    {"glm4v_moe_text", "glm4_moe",
     R"({"vocab_size": 151424, "max_position_embeddings": 65536, "attention_bias": true})"},
    {"glm4v_text", "glm4", kGlm4v},
    {"glm_ocr_text", "glm4", R"({"vocab_size": 59392, "hidden_size": 1024,
        "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "head_dim": null,
        "partial_rotary_factor": 1.0, "attention_bias": false})"},
    {"granite4_vision_text", "granite", "{}"},
    {"granite_docling_text", "granite", R"({"vocab_size": 133800, "hidden_size": 1024,
        "intermediate_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 4, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true, "embedding_multiplier": 12.0, "logits_scaling": 4.0,
        "residual_multiplier": 0.263, "attention_multiplier": 0.015625})"},
    {"qwen2_5_vl_text", "qwen2", kQwen2Vl},
    {"qwen2_vl_text", "qwen2", kQwen2Vl},
    {"qwen3_vl_moe_text", "qwen3_moe", R"({"intermediate_size": 5632,
        "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 128000,
        "moe_intermediate_size": 1408, "num_experts_per_tok": 4,
        "norm_topk_prob": true, "rope_theta": 500000.0})"},
    {"qwen3_vl_text", "qwen3", R"({"max_position_embeddings": 128000, "rope_theta": 500000.0})"},
});

const Multimodal* FindMultimodal(std::string_view architecture) {
  const auto found =
      std::find_if(kMultimodal.begin(), kMultimodal.end(), [&](const Multimodal& row) {
        return row.architecture == architecture || row.model_type == architecture;
      });
  return found == kMultimodal.end() ? nullptr : &*found;
}

// The parts of each frequency's axis do not matter without images.
void DropAxes(Json& config) {
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    const auto rope = config.find(field);
    if (rope == config.end() || !rope->is_object()) continue;
    for (const char* key : {"mrope_section", "mrope_interleaved"}) rope->erase(key);
    for (const char* key : {"rope_type", "type"}) {
      if (rope->contains(key) && IsString((*rope)[key], "mrope")) (*rope)[key] = "default";
    }
  }
}

}  // namespace

Json TextConfig(const Json& json, const std::string& source) {
  const auto text = json.find("text_config");
  if (text == json.end() || text->is_null()) return json;
  if (!text->is_object()) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field 'text_config' must be an object, got " + text->type_name());
  }
  Json merged = *text;
  for (const char* field :
       {"bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config"}) {
    if (json.contains(field) && !json[field].is_null()) merged[field] = json[field];
  }
  return merged;
}

void AddMultimodalNames(std::vector<WeightSpec>& specs) {
  for (WeightSpec& spec : specs) {
    for (std::string& name : NamesInside(spec.name)) spec.aliases.push_back(std::move(name));
    const std::vector<StoredPart> parts = spec.parts;
    for (const StoredPart& part : parts) {
      for (std::string& name : NamesInside(part.tensor)) {
        spec.parts.push_back(part);
        spec.parts.back().tensor = std::move(name);
      }
    }
  }
}

bool HasTextPart(std::string_view architecture) { return FindMultimodal(architecture) != nullptr; }

Json ReadTextPart(const Json& json, std::string_view architecture, const std::string& source,
                  std::string* type) {
  const Multimodal* row = FindMultimodal(architecture);
  TANDEM_CHECK(row != nullptr);
  const bool has_text = json.contains("text_config") && !json["text_config"].is_null();
  if (!has_text && !row->is_flat) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'text_config' is missing");
  }
  Json text = TextConfig(json, source);
  *type = row->text_type;
  if (has_text) *type = JsonStringOr(text, "model_type", *type, source);
  const auto known = std::find_if(kTextTypes.begin(), kTextTypes.end(),
                                  [&](const TextType& each) { return each.type == *type; });
  if (known != kTextTypes.end()) {
    *type = known->family_type;
    const Json defaults = Json::parse(known->defaults);
    for (const auto& [key, value] : defaults.items()) {
      if (!text.contains(key) || text[key].is_null()) text[key] = value;
    }
  }
  DropAxes(text);
  return text;
}

}  // namespace tandem::engine
