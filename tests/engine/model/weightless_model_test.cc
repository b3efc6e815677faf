#include "engine/model/weightless_model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/model/model.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

std::string TinyConfigText(std::string_view family) {
  const FamilySpec& spec = FindFamilyByName(family);
  return spec.write_config(bench::TinyModelConfig(family)).dump();
}

// The header of a safetensors file, with its length.
std::string SafetensorsHeadOf(const std::filesystem::path& file) {
  const std::string bytes = ReadWholeFile(file, 1 << 30);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  return bytes.substr(0, sizeof(length) + length);
}

void ExpectSameOutline(const ModelDir& a, const ModelDir& b) {
  for (const BlockFormat block : {BlockFormat::kNone, BlockFormat::kInt4}) {
    const ModelOutline of_a = OutlineModel(a, {.block = block});
    const ModelOutline of_b = OutlineModel(b, {.block = block});
    EXPECT_EQ(of_a.weight_bytes, of_b.weight_bytes);
    EXPECT_EQ(of_a.active_parameters, of_b.active_parameters);
    EXPECT_EQ(of_a.types.name, of_b.types.name);
  }
}

TEST(WeightlessModel, HasTheOutlineOfTheModelInEveryFamily) {
  for (const FamilySpec* family : Families()) {
    SCOPED_TRACE(family->name);
    const tests::TemporaryDir dir;
    bench::WriteRandomModel({.config = bench::TinyModelConfig(family->name)}, dir / "model");
    const ModelDir whole = ModelDir::Open(dir / "model");
    const std::string config = ReadWholeFile(dir / "model/config.json", 1 << 20);
    const auto bytes = std::filesystem::file_size(dir / "model/model.safetensors");

    ExpectSameOutline(WeightlessModel::FromConfig("m", config).dir(), whole);
    const auto described = WeightlessModel::FromFiles(
        "m", {{"config.json", config, config.size()},
              {"model.safetensors", SafetensorsHeadOf(dir / "model/model.safetensors"), bytes}});
    ExpectSameOutline(described.dir(), whole);
    EXPECT_EQ(described.weight_file_bytes(), bytes);
  }
}

TEST(WeightlessModel, TakesNoMemoryForItsWeights) {
  bench::RandomModelSpec large;
  large.config = bench::Qwen3MoeConfig(48);
  const std::string config =
      FindFamilyByName(large.config.family).write_config(large.config).dump();

  const WeightlessModel model = WeightlessModel::FromConfig("m", config);

  EXPECT_GT(model.weight_file_bytes(), 60'000'000'000U);
  EXPECT_GT(OutlineModel(model.dir(), {}).parameter_count(), 30'000'000'000);
}

TEST(WeightlessModel, ATypeOfTheConfigIsTheTypeOfItsTensors) {
  auto json = nlohmann::ordered_json::parse(TinyConfigText("llama"));
  json["dtype"] = "float32";
  EXPECT_EQ(OutlineModel(WeightlessModel::FromConfig("m", json.dump()).dir(), {}).types.name,
            "f32");
  json.erase("dtype");
  json["torch_dtype"] = "float16";
  EXPECT_EQ(OutlineModel(WeightlessModel::FromConfig("m", json.dump()).dir(), {}).types.name,
            "bf16");
}

TEST(WeightlessModel, SaysThatAConfigOfAQuantisedModelDoesNotTellItsTensors) {
  auto json = nlohmann::ordered_json::parse(TinyConfigText("llama"));
  EXPECT_FALSE(WeightlessModel::FromConfig("m", json.dump()).is_quantised());
  json["quantization_config"] = {{"quant_method", "fp8"}};
  EXPECT_TRUE(WeightlessModel::FromConfig("m", json.dump()).is_quantised());
}

TEST(WeightlessModel, AnUnknownArchitectureAndImpossibleFilesAreRefused) {
  const auto fault = [](const auto& make) -> std::string {
    try {
      make();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(fault([] {
              WeightlessModel::FromConfig("m", R"({"architectures": ["NewForCausalLM"]})");
            }).find("m/config.json: architecture 'NewForCausalLM' is not supported"),
            std::string::npos);
  EXPECT_NE(fault([] {
              WeightlessModel::FromFiles("m", {{"config.json", "{}", 1}});
            }).find("config.json: a size of 1 bytes"),
            std::string::npos);
  EXPECT_NE(fault([] {
              WeightlessModel::FromFiles("m", {{"model.gguf", "GGUF", uint64_t{1} << 50}});
            }).find("model.gguf: a size"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem::engine
