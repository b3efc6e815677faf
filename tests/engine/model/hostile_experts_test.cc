// Checkpoints whose experts contradict config.json or each other. OutlineModel refuses them before
// anything is allocated.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/formats/model_dir.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/model/families/family.h"
#include "engine/model/model.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

// A tiny model of zeros, one file of tensors that a test changes before it is written.
class HostileExperts : public ::testing::Test {
 protected:
  using Tensors = std::vector<NamedTensor>;

  // The tensors of a family's tiny model: by weight, or stacked as they are published.
  Tensors TensorsOf(const char* family, bool stacked) const {
    const ModelConfig config = bench::TinyModelConfig(family);
    Tensors tensors;
    for (const WeightSpec& spec : FindFamilyByName(family).list_weights(config)) {
      if (stacked && !spec.parts.empty()) continue;
      tensors.push_back({spec.name, {zeros_.data(), DType::kBF16, spec.source_shape}});
    }
    if (!stacked) return tensors;
    const int64_t n = config.experts.router.n_experts, ffn = config.experts.ffn_dim;
    const int64_t hidden = config.hidden_dim;
    for (int64_t layer = 0; layer < config.n_layers; ++layer) {
      const std::string experts = "model.layers." + std::to_string(layer) + ".mlp.experts.";
      const auto add = [&](const char* name, std::vector<int64_t> shape) {
        tensors.push_back({experts + name, {zeros_.data(), DType::kBF16, std::move(shape)}});
      };
      add("gate_up_proj", {n, hidden, 2 * ffn});
      add("gate_up_proj_bias", {n, 2 * ffn});
      add("down_proj", {n, ffn, hidden});
      add("down_proj_bias", {n, hidden});
    }
    return tensors;
  }

  static NamedTensor& Named(Tensors& tensors, const std::string& name) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const NamedTensor& t) { return t.name == name; });
    if (found == tensors.end()) throw std::runtime_error("the test has no " + name);
    return *found;
  }

  // The message with which the model is refused; empty if it is accepted.
  std::string Refusal(const char* family, const Tensors& tensors, ErrorCode code,
                      const nlohmann::ordered_json& more = nlohmann::ordered_json::object()) {
    const fs::path model = dir_.path() / std::to_string(n_models_++);
    fs::create_directory(model);
    const FamilySpec& spec = FindFamilyByName(family);
    nlohmann::ordered_json config = spec.write_config(bench::TinyModelConfig(family));
    config.update(more);
    std::ofstream(model / "config.json") << config;
    WriteSafetensors(model / "model.safetensors", tensors, {{"format", "pt"}});
    const auto error = ErrorOf([&] { OutlineModel(ModelDir::Open(model), {}); });
    if (!error) return "";
    EXPECT_EQ(error->code(), code) << error->what();
    return error->what();
  }

  const std::vector<std::byte> zeros_ = std::vector<std::byte>(1 << 20);

 private:
  tests::TemporaryDir dir_;
  int n_models_ = 0;
};

constexpr const char* kExpert7 = "model.layers.1.mlp.experts.7.up_proj.weight";

TEST_F(HostileExperts, AMissingTensorOfOneExpertIsNamed) {
  Tensors tensors = TensorsOf("qwen3_moe", false);
  ASSERT_EQ(Refusal("qwen3_moe", tensors, ErrorCode::kInternal), "");
  std::erase_if(tensors, [](const NamedTensor& t) { return t.name == kExpert7; });

  const std::string refusal = Refusal("qwen3_moe", tensors, ErrorCode::kDataLoss);

  EXPECT_NE(refusal.find(std::string("'") + kExpert7 + "' is missing"), std::string::npos)
      << refusal;
}

TEST_F(HostileExperts, OneExpertOfAnotherTypeIsNamedWithBothTypes) {
  for (const DType other : {DType::kF32, DType::kF16}) {
    Tensors tensors = TensorsOf("qwen3_moe", false);
    Named(tensors, kExpert7).view.dtype = other;

    const std::string refusal = Refusal("qwen3_moe", tensors, ErrorCode::kDataLoss);

    EXPECT_NE(refusal.find(kExpert7), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("has type " + std::string(DTypeName(other))), std::string::npos)
        << refusal;
    EXPECT_NE(refusal.find("experts.0.up_proj.weight' has bf16"), std::string::npos) << refusal;
  }
}

TEST_F(HostileExperts, ProjectionsMayDifferInTypeFromEachOther) {
  Tensors tensors = TensorsOf("qwen3_moe", false);
  for (NamedTensor& tensor : tensors) {
    if (tensor.name.ends_with("down_proj.weight")) tensor.view.dtype = DType::kF32;
  }
  EXPECT_EQ(Refusal("qwen3_moe", tensors, ErrorCode::kInternal), "");
}

TEST_F(HostileExperts, OneExpertOfIntegersOrOfAnotherShapeIsNamed) {
  Tensors integers = TensorsOf("qwen3_moe", false);
  Named(integers, kExpert7).view.dtype = DType::kI8;
  const std::string type = Refusal("qwen3_moe", integers, ErrorCode::kUnsupported);
  EXPECT_NE(type.find(kExpert7), std::string::npos) << type;
  EXPECT_NE(type.find("i8"), std::string::npos) << type;

  Tensors narrow = TensorsOf("qwen3_moe", false);
  --Named(narrow, kExpert7).view.shape[1];
  const std::string shape = Refusal("qwen3_moe", narrow, ErrorCode::kDataLoss);
  EXPECT_NE(shape.find(kExpert7), std::string::npos) << shape;
  EXPECT_NE(shape.find("[24, 47]"), std::string::npos) << shape;
  EXPECT_NE(shape.find("[24, 48]"), std::string::npos) << shape;
}

TEST_F(HostileExperts, FP8WithoutScalesIsRefusedByTensor) {
  Tensors tensors = TensorsOf("qwen3_moe", false);
  Named(tensors, kExpert7).view.dtype = DType::kF8E4M3;
  const std::string refusal = Refusal("qwen3_moe", tensors, ErrorCode::kUnsupported);
  EXPECT_NE(refusal.find(kExpert7), std::string::npos) << refusal;
}

// A router with a row for an expert that does not exist, or without one for an expert that does.
TEST_F(HostileExperts, ARouterOfAnotherNumberOfExpertsIsNamed) {
  const struct {
    const char* family;
    const char* tensor;
  } routers[] = {{"qwen3_moe", "model.layers.1.mlp.gate.weight"},
                 {"mixtral", "model.layers.1.block_sparse_moe.gate.weight"},
                 {"deepseek_v3", "model.layers.1.mlp.gate.e_score_correction_bias"},
                 {"gpt_oss", "model.layers.1.mlp.router.bias"}};
  for (const auto& [family, name] : routers) {
    const bool stacked = std::string_view(family) == "gpt_oss";
    for (const int64_t more : {1, -1}) {
      Tensors tensors = TensorsOf(family, stacked);
      NamedTensor& router = Named(tensors, name);
      const std::string expected = ShapeText(router.view.shape);
      router.view.shape[0] += more;

      const std::string refusal = Refusal(family, tensors, ErrorCode::kDataLoss);

      EXPECT_NE(refusal.find(std::string("'") + name + "'"), std::string::npos) << refusal;
      EXPECT_NE(refusal.find(ShapeText(router.view.shape)), std::string::npos) << refusal;
      EXPECT_NE(refusal.find(expected), std::string::npos) << refusal;
    }
  }
}

TEST_F(HostileExperts, AMissingRouterAndAMissingStackAreNamed) {
  for (const std::string name :
       {"model.layers.1.mlp.router.weight", "model.layers.1.mlp.experts.gate_up_proj"}) {
    Tensors tensors = TensorsOf("gpt_oss", true);
    std::erase_if(tensors, [&](const NamedTensor& t) { return t.name == name; });
    const std::string refusal = Refusal("gpt_oss", tensors, ErrorCode::kDataLoss);
    EXPECT_NE(refusal.find("model.layers.1.mlp."), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("is missing"), std::string::npos) << refusal;
  }
}

// Experts of FP8 have scales of blocks: a row too many, a column too few, an axis too few, one for
// each input, none.
TEST_F(HostileExperts, FP8ScalesOfOneExpertOfAWrongShapeAreNamedWithTheField) {
  const nlohmann::ordered_json config = {
      {"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {16, 16}}}}};
  const auto scale_of = [](const std::string& weight) { return weight + "_scale_inv"; };
  const auto quantised = [&] {
    Tensors tensors;
    for (NamedTensor& tensor : TensorsOf("qwen3_moe", false)) {
      if (tensor.name.find(".experts.") != std::string::npos) {
        const std::vector<int64_t>& shape = tensor.view.shape;
        tensors.push_back(
            {scale_of(tensor.name),
             {zeros_.data(), DType::kF32, {(shape[0] + 15) / 16, (shape[1] + 15) / 16}}});
        tensor.view.dtype = DType::kF8E4M3;
      }
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  };
  ASSERT_EQ(Refusal("qwen3_moe", quantised(), ErrorCode::kInternal, config), "");
  const std::vector<std::function<void(std::vector<int64_t>&)>> changes = {
      [](auto& shape) { ++shape[0]; }, [](auto& shape) { --shape[1]; },
      [](auto& shape) { shape.pop_back(); }, [](auto& shape) { shape = {48}; }};
  for (const auto& change : changes) {
    Tensors tensors = quantised();
    NamedTensor& scale = Named(tensors, scale_of(kExpert7));
    change(scale.view.shape);

    const std::string refusal = Refusal("qwen3_moe", tensors, ErrorCode::kDataLoss, config);

    EXPECT_NE(refusal.find("'" + scale_of(kExpert7) + "'"), std::string::npos) << refusal;
    EXPECT_NE(refusal.find(ShapeText(scale.view.shape)), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("'weight_block_size'"), std::string::npos) << refusal;
  }
  Tensors without = quantised();
  std::erase_if(without, [&](const NamedTensor& t) { return t.name == scale_of(kExpert7); });
  const std::string refusal = Refusal("qwen3_moe", without, ErrorCode::kDataLoss, config);
  EXPECT_NE(refusal.find(std::string(kExpert7) + "_scale' is missing"), std::string::npos)
      << refusal;
}

// An expert more or less, fewer or more inputs and outputs, an axis less or more.
TEST_F(HostileExperts, AStackOfAnotherShapeIsNamed) {
  const std::string stack = "model.layers.1.mlp.experts.gate_up_proj";
  ASSERT_EQ(Refusal("gpt_oss", TensorsOf("gpt_oss", true), ErrorCode::kInternal), "");
  const std::vector<std::function<void(std::vector<int64_t>&)>> changes = {
      [](auto& shape) { --shape[0]; },        [](auto& shape) { ++shape[0]; },
      [](auto& shape) { shape[2] -= 2; },     [](auto& shape) { shape[2] += 2; },
      [](auto& shape) { --shape[1]; },        [](auto& shape) { shape.pop_back(); },
      [](auto& shape) { shape.push_back(1); }};
  for (const auto& change : changes) {
    Tensors tensors = TensorsOf("gpt_oss", true);
    NamedTensor& tensor = Named(tensors, stack);
    change(tensor.view.shape);

    const std::string refusal = Refusal("gpt_oss", tensors, ErrorCode::kDataLoss);

    EXPECT_NE(refusal.find("'" + stack + "'"), std::string::npos) << refusal;
    EXPECT_NE(refusal.find(ShapeText(tensor.view.shape)), std::string::npos) << refusal;
  }
  Tensors bias = TensorsOf("gpt_oss", true);
  --Named(bias, stack + "_bias").view.shape[0];
  const std::string refusal = Refusal("gpt_oss", bias, ErrorCode::kDataLoss);
  EXPECT_NE(refusal.find("'" + stack + "_bias'"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace tandem::engine
