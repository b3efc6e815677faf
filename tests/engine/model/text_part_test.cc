// Text parts of multimodal models, and refusals of architectures that no family computes.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/formats/model_dir.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/atomic_write.h"
#include "engine/model/families/family.h"
#include "engine/model/families/missing_parts.h"
#include "engine/model/plan_ops.h"
#include "tests/support/golden.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

using TextJson = nlohmann::ordered_json;
namespace fs = std::filesystem;

TextJson TextJsonOf(const fs::path& model) {
  return TextJson::parse(ReadWholeFile(model / "config.json", 1 << 20));
}

// A multimodal config around the config of a text model.
TextJson Around(const char* architecture, TextJson text, const char* text_type) {
  text.erase("architectures");
  text["model_type"] = text_type;
  return {{"architectures", {architecture}},
          {"vision_config", {{"hidden_size", 8}}},
          {"text_config", std::move(text)}};
}

// Copies the tensors of a model under other names, beside one of the eyes.
void WriteWithEyes(const fs::path& model, const TextJson& config, const fs::path& dir,
                   const std::function<std::string(const std::string&)>& rename) {
  const ModelDir source = ModelDir::Open(model);
  std::vector<NamedTensor> tensors;
  for (const std::string& name : source.tensor_names()) {
    tensors.push_back({rename(name), *source.FindTensor(name)});
  }
  tensors.push_back({"model.visual.patch", tensors.front().view});
  WriteSafetensors(dir / "model.safetensors", tensors, {{"format", "pt"}});
  WriteFileAtomically(dir / "config.json", config.dump());
}

void ExpectTheSameLogits(const fs::path& text, const fs::path& multimodal) {
  std::vector<TokenId> tokens;
  for (TokenId token = 3; token < 60; ++token) tokens.push_back(token);
  tests::ModelHarness a(text, {}), b(multimodal, {});
  const std::vector<float> want = a.Prefill(tokens, 0), got = b.Prefill(tokens, 0);
  ASSERT_EQ(want.size(), got.size());
  EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0);
}

std::string RefusalOf(const TextJson& json) {
  try {
    ParseModelConfig(FindFamily(json, "config.json"), json, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string Inside(const std::string& name) { return "language_model." + name; }

std::string InsideOfModel(const std::string& name) {
  return name.starts_with("model.") ? "model.language_model." + name.substr(6) : name;
}

std::string InsideOfTextModel(const std::string& name) {
  return name.starts_with("model.") ? "model.text_model." + name.substr(6) : name;
}

TEST(TextPart, HasTheSameLogitsAloneAndInsideOfAMultimodalModel) {
  struct Case {
    const char *golden, *architecture, *type;
    std::string (*rename)(const std::string&);
  };
  for (const Case& c :
       {Case{"llama2-tiny-two-shards", "LlavaForConditionalGeneration", "llama", Inside},
        Case{"llama2-tiny-two-shards", "Idefics3ForConditionalGeneration", "llama",
             InsideOfTextModel},
        Case{"qwen3-tiny", "Qwen3VLForConditionalGeneration", "qwen3_vl_text", InsideOfModel},
        Case{"cohere2-tiny", "AyaVisionForConditionalGeneration", "cohere2", Inside},
        Case{"glm4-tiny", "Glm4vForConditionalGeneration", "glm4v_text", InsideOfModel},
        Case{"lfm2-tiny", "Lfm2VlForConditionalGeneration", "lfm2", InsideOfModel}}) {
    SCOPED_TRACE(c.architecture);
    const fs::path text = tests::LoadGolden(c.golden).dir;
    const tests::TemporaryDir dir;
    TextJson json = TextJsonOf(text);
    // The defaults of the two types differ.
    if (std::string_view(c.type) == "glm4v_text") json["partial_rotary_factor"] = 0.5;
    WriteWithEyes(text, Around(c.architecture, json, c.type), dir.path(), c.rename);
    ExpectTheSameLogits(text, dir.path());
  }
}

TEST(TextPart, OfQwen2VlMayHaveItsKeysOutsideAndARopeWithAxes) {
  const fs::path text = tests::LoadGolden("qwen2-tiny").dir;
  TextJson config = TextJsonOf(text);
  config["architectures"] = {"Qwen2_5_VLForConditionalGeneration"};
  config["model_type"] = "qwen2_5_vl";
  config["vision_config"] = {{"hidden_size", 8}};
  config["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {1, 1, 1}}};
  const tests::TemporaryDir dir;
  WriteWithEyes(text, config, dir.path(), [](const std::string& name) { return name; });

  ExpectTheSameLogits(text, dir.path());
}

// gate_up_proj [n_experts, hidden, 2 * ffn_dim] or down_proj [n_experts, ffn_dim, hidden].
std::vector<float> StackedWithInputsFirst(const ModelDir& source, const std::string& layer,
                                          const std::vector<std::string>& projections,
                                          int64_t n_experts, std::vector<int64_t>* shape) {
  std::vector<float> stacked;
  for (int64_t e = 0; e < n_experts; ++e) {
    std::vector<ConstTensorView> parts;
    for (const std::string& projection : projections) {
      parts.push_back(*source.FindTensor(layer + ".mlp.experts." + std::to_string(e) + "." +
                                         projection + ".weight"));
    }
    const int64_t inputs = parts.front().shape[1], outputs = parts.front().shape[0];
    *shape = {n_experts, inputs, outputs * static_cast<int64_t>(parts.size())};
    for (int64_t k = 0; k < inputs; ++k) {
      for (const ConstTensorView& part : parts) {
        const auto* values = reinterpret_cast<const float*>(part.data);
        for (int64_t n = 0; n < outputs; ++n) stacked.push_back(values[n * inputs + k]);
      }
    }
  }
  return stacked;
}

TEST(TextPart, OfQwen3VlHasItsExpertsStackedWithTheInputsFirst) {
  const tests::TemporaryDir dir;
  const fs::path text = dir.path() / "text", eyes = dir.path() / "eyes";
  const ModelConfig c = bench::TinyModelConfig("qwen3_moe");
  bench::WriteRandomModel({.config = c, .stored = DType::kF32}, text);
  const ModelDir source = ModelDir::Open(text);
  std::vector<NamedTensor> tensors;
  std::map<std::string, std::vector<float>> values;  // of tensors below; nodes do not move
  for (const std::string& name : source.tensor_names()) {
    if (name.find(".mlp.experts.") == std::string::npos) {
      tensors.push_back({InsideOfModel(name), *source.FindTensor(name)});
    }
  }
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    if (!c.HasExperts(layer)) continue;
    const std::string prefix = "model.layers." + std::to_string(layer);
    const auto add = [&](const char* name, const std::vector<std::string>& projections) {
      std::vector<int64_t> shape;
      const std::string full = InsideOfModel(prefix) + ".mlp.experts." + name;
      std::vector<float>& stacked = values[full] =
          StackedWithInputsFirst(source, prefix, projections, c.experts.router.n_experts, &shape);
      tensors.push_back(
          {full, {reinterpret_cast<const std::byte*>(stacked.data()), DType::kF32, shape}});
    };
    add("gate_up_proj", {"gate_proj", "up_proj"});
    add("down_proj", {"down_proj"});
  }
  fs::create_directory(eyes);
  WriteSafetensors(eyes / "model.safetensors", tensors, {{"format", "pt"}});
  const TextJson config =
      Around("Qwen3VLMoeForConditionalGeneration", TextJsonOf(text), "qwen3_vl_moe_text");
  WriteFileAtomically(eyes / "config.json", config.dump());

  ExpectTheSameLogits(text, eyes);
}

TEST(TextPart, AbsentKeysHaveTheDefaultsOfItsOwnClass) {
  const TextJson json{{"architectures", {"Glm4vForConditionalGeneration"}},
                      {"text_config", {{"model_type", "glm4v_text"}}}};
  const ModelConfig c = ParseModelConfig(FindFamily(json, "config.json"), json, "config.json");

  EXPECT_EQ(c.family, "glm4");
  EXPECT_EQ(c.norm_eps, 1e-5f) << "GLM-4 has 1.5625e-07";
  EXPECT_EQ(c.rotary_dim, 0) << "all of a head rotates; in GLM-4 half of it";
}

TEST(TextPart, IsRefusedByItsTypeWhereNoFamilyComputesIt) {
  const TextJson opt{{"architectures", {"LlavaForConditionalGeneration"}},
                     {"text_config", {{"model_type", "opt"}}}};
  const std::string fault = RefusalOf(opt);

  EXPECT_NE(fault.find("text part 'opt' of 'LlavaForConditionalGeneration'"), std::string::npos)
      << fault;
  EXPECT_NE(fault.find("learned positions with an offset"), std::string::npos) << fault;
}

TEST(TextPart, MustBeThere) {
  const TextJson none{{"architectures", {"LlavaForConditionalGeneration"}}};
  EXPECT_NE(RefusalOf(none).find("field 'text_config' is missing"), std::string::npos);
  const TextJson number{{"architectures", {"LlavaForConditionalGeneration"}}, {"text_config", 3}};
  EXPECT_NE(RefusalOf(number).find("field 'text_config' must be an object"), std::string::npos);
}

TEST(MissingParts, ARefusalNamesTheArchitectureAndThePart) {
  ASSERT_GT(MissingArchitectures().size(), 100u);
  for (const MissingArchitecture& row : MissingArchitectures()) {
    const std::string architecture(row.architecture), part(row.part);
    for (const TextJson& json : {TextJson{{"architectures", {architecture}}},
                                 TextJson{{"model_type", std::string(row.model_type)}}}) {
      const std::string fault = RefusalOf(json);
      const std::string name =
          json.contains("model_type") ? std::string(row.model_type) : architecture;
      EXPECT_NE(fault.find("'" + name + "' needs a part"), std::string::npos) << fault;
      EXPECT_NE(fault.find("; supported are "), std::string::npos) << fault;
    }
    EXPECT_NE(RefusalOf({{"architectures", {architecture}}}).find(part), std::string::npos);
  }
}

TEST(MissingParts, NoFamilyHasAnArchitectureOfTheTable) {
  for (const FamilySpec* family : Families()) {
    for (const std::string_view name : family->architectures) {
      EXPECT_EQ(MissingPart(name), "") << family->name << " computes " << name;
    }
  }
}

TEST(MissingParts, AnArchitectureOfNobodyIsRefusedByItsName) {
  const std::string fault = RefusalOf({{"architectures", {"QuillForCausalLM"}}});
  EXPECT_NE(fault.find("architecture 'QuillForCausalLM' is not supported"), std::string::npos)
      << fault;
}

// The rows of a step come with the states of its sequences.
TEST(OneTap, AConvolutionThatKeepsNothingStillHasAState) {
  const FamilySpec& family = FindFamilyByName("lfm2");
  ModelConfig c = bench::TinyModelConfig("lfm2");
  c.recurrent.conv.kernel = 1;
  EXPECT_GT(PlanForward(family, c, family.list_weights(c), DType::kF32).state_floats, 0);
}

}  // namespace
}  // namespace tandem::engine
