// Adapters on a base: their weights, adapters that do not fit, and rows with an adapter that leave
// other rows unchanged.

#include "engine/model/adapter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "tests/engine/model/format_turns.h"
#include "tests/support/adapters.h"
#include "tests/support/golden.h"
#include "tests/support/model_harness.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

using tests::ModelHarness;

// Rewrites the name, shape or values of one tensor of an adapter.
void Change(const std::filesystem::path& dir, const std::string& tensor, const std::string& name,
            const std::vector<int64_t>& shape, float value = 0,
            const std::map<std::string, std::string>& metadata = {}) {
  const auto path = dir / "adapter_model.safetensors";
  const SafetensorsFile file = SafetensorsFile::Open(path);
  std::vector<NamedTensor> tensors;
  std::vector<float> fresh;
  for (const std::string& each : file.names()) {
    tensors.push_back({each, *file.Find(each)});
    if (each != tensor) continue;
    tensors.back().name = name;
    if (shape.empty()) continue;
    fresh.assign(static_cast<size_t>(ElementCount(shape)), value);
    tensors.back().view = {reinterpret_cast<const std::byte*>(fresh.data()), DType::kF32, shape};
  }
  WriteSafetensors(dir / "changed", tensors, metadata);
  std::filesystem::rename(dir / "changed", path);
}

class AdapterTest : public testing::Test {
 protected:
  AdapterTest() {
    bench::RandomModelSpec spec;
    spec.config = bench::TinyModelConfig("llama");
    spec.config.tied_embeddings = false;
    bench::WriteRandomModel(spec, directory_.path() / "model");
    tests::WriteRandomAdapter(directory_.path() / "model", 4, 1, adapter_dir());
    harness_.emplace(directory_.path() / "model", ModelHarness::Options{.dtype = DType::kBF16});
  }
  std::filesystem::path adapter_dir() const { return directory_.path() / "adapter"; }

  void ExpectRefused(const std::vector<std::string>& parts) {
    try {
      harness_->LoadAdapter(adapter_dir());
      ADD_FAILURE() << "was not refused: " << parts[0];
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
  }

  tests::TemporaryDir directory_;
  std::optional<ModelHarness> harness_;
};

constexpr const char* kA = "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight";
constexpr const char* kB = "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight";

TEST_F(AdapterTest, HasMatricesForEveryLinearLayerAndNothingElse) {
  const auto adapter = harness_->LoadAdapter(adapter_dir());

  for (const WeightSpec& spec : harness_->model().weight_specs()) {
    const auto index = static_cast<int32_t>(&spec - harness_->model().weight_specs().data());
    const bool linear = spec.name.find("_proj.weight") != std::string::npos;
    EXPECT_EQ(adapter->Find(index) != nullptr, linear) << spec.name;
  }
  EXPECT_EQ(adapter->rank(), 4);
}

TEST_F(AdapterTest, SaysHowTheBaseItWasTrainedBesideDiffers) {
  EXPECT_TRUE(harness_->LoadAdapter(adapter_dir())->BaseDifferences().empty()) << "says nothing";
  const std::string hash = harness_->model().content_hash();
  Change(adapter_dir(), kA, kA, {}, 0, LoraMetadata(hash, DType::kBF16, "bf16"));
  EXPECT_TRUE(harness_->LoadAdapter(adapter_dir())->BaseDifferences().empty()) << "the same";

  Change(adapter_dir(), kA, kA, {}, 0, LoraMetadata("00\nff", DType::kF32, "f32"));
  const auto differences = harness_->LoadAdapter(adapter_dir())->BaseDifferences();

  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0],
            "trained on other weights: 'base' with SHA-256 '00?ff', but this base "
            "has '" +
                hash + "'");
  EXPECT_EQ(differences[1], "trained in 'f32', but this base computes in 'bf16'");

  Change(adapter_dir(), kA, kA, {}, 0, LoraMetadata(hash, DType::kBF16, "int4"));
  EXPECT_EQ(
      harness_->LoadAdapter(adapter_dir())->BaseDifferences(),
      std::vector<std::string>{"trained with base weights in 'int4', but this base holds them in "
                               "'bf16'"});
}

TEST_F(AdapterTest, RefusesShapesThatTheBaseDoesNotHave) {
  Change(adapter_dir(), kA, kA, {4, 47});
  ExpectRefused({kA, "[4, 47]", "model.layers.1.mlp.up_proj.weight"});
}

TEST_F(AdapterTest, RefusesOutputsThatTheBaseDoesNotHave) {
  Change(adapter_dir(), kB, kB, {1, 4});
  ExpectRefused({kB, "[1, 4]"});
}

TEST_F(AdapterTest, RefusesValuesThatAreNotFinite) {
  Change(adapter_dir(), kA, kA, {4, 48}, std::numeric_limits<float>::quiet_NaN());
  ExpectRefused({kA, "not finite"});
}

TEST_F(AdapterTest, RefusesModulesThatTheBaseDoesNotHaveOrThatAreNoLinearLayers) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"model.layers.7.mlp.up_proj", "no linear layer"},
      {"model.layers.1.input_layernorm", "not supported"},
      {"model.embed_tokens", "needs lora_embedding_A"},
      {"lm_head", "needs [272, 4]"},
      {"model.layers.1\n.mlp.up_proj", "no linear layer"}};
  for (const auto& [module, why] : cases) {
    SCOPED_TRACE(module);
    std::filesystem::remove_all(adapter_dir());
    tests::WriteRandomAdapter(directory_.path() / "model", 4, 1, adapter_dir());
    const auto [a, b] = LoraTensorNames(module);
    Change(adapter_dir(), kA, a, {});
    Change(adapter_dir(), kB, b, {});
    std::string config = ReadWholeFile(adapter_dir() / "adapter_config.json", 1 << 20);
    config.insert(config.find("\"model.layers"), nlohmann::json(module).dump() + ", ");
    WriteFileAtomically(adapter_dir() / "adapter_config.json", config);

    std::string printed = module;
    std::replace(printed.begin(), printed.end(), '\n', '?');
    ExpectRefused({printed, why});
  }
}

TEST_F(AdapterTest, RefusesCopiesThatDoNotFitTheBase) {
  const auto with_copy = [&](const std::string& path, const std::vector<int64_t>& shape,
                             float value = 1) {
    std::filesystem::remove_all(adapter_dir());
    training::LoraOptions lora;
    lora.rank = 4;
    lora.modules_to_save = {"model.norm"};
    tests::WriteRandomAdapter(directory_.path() / "model", lora, 1, adapter_dir());
    Change(adapter_dir(), SavedTensorName("model.norm", "weight"), SavedTensorName(path, "weight"),
           shape, value);
    const auto file = adapter_dir() / "adapter_config.json";
    auto config = nlohmann::json::parse(ReadWholeFile(file, 1 << 20));
    config["modules_to_save"] = {path};
    WriteFileAtomically(file, config.dump());
  };
  with_copy("model.norm", {48});
  EXPECT_TRUE(harness_->LoadAdapter(adapter_dir())->has_own());
  with_copy("model.norm", {47});
  ExpectRefused({"model.norm.weight", "[47]", "[48]"});
  with_copy("model.norm", {48}, std::numeric_limits<float>::infinity());
  ExpectRefused({"model.norm.weight", "not finite"});
  with_copy("score", {2, 48});
  ExpectRefused({"score.weight", "belongs to no weight"});
  with_copy("model.layers.1.mlp.up_proj", {80, 48});
  ExpectRefused({"up_proj.weight", "also has lora_A"});
}

// PEFT writes the base's own embeddings beside their adapter.
TEST_F(AdapterTest, TakesTheBasesOwnEmbeddingsOnly) {
  training::LoraOptions lora;
  lora.rank = 4;
  lora.embeddings = true;
  std::filesystem::remove_all(adapter_dir());
  tests::WriteRandomAdapter(directory_.path() / "model", lora, 1, adapter_dir());
  const std::string name = "base_model.model.lm_head.base_layer.weight";
  const auto with_copy = [&](float change) {
    const SafetensorsFile base =
        SafetensorsFile::Open(directory_.path() / "model/model.safetensors");
    const ConstTensorView& view = *base.Find("lm_head.weight");
    std::vector<float> values(static_cast<size_t>(view.elements()));
    ConvertToF32(view, values);
    values[5] += change;
    const auto path = adapter_dir() / "adapter_model.safetensors";
    const SafetensorsFile file = SafetensorsFile::Open(path);
    std::vector<NamedTensor> tensors;
    for (const std::string& each : file.names()) {
      if (each != name) tensors.push_back({each, *file.Find(each)});
    }
    tensors.push_back(
        {name, {reinterpret_cast<const std::byte*>(values.data()), DType::kF32, view.shape}});
    WriteSafetensors(adapter_dir() / "changed", tensors, {});
    std::filesystem::rename(adapter_dir() / "changed", path);
  };
  with_copy(0);
  EXPECT_NE(harness_->LoadAdapter(adapter_dir())->FindHead(), nullptr);
  with_copy(1);
  ExpectRefused({name, "differs from the base's weight", "save_embedding_layers=False"});
}

// An adapter without its tensors of one kind would run with other outputs.
TEST_F(AdapterTest, RefusesTargetsOfTheBaseThatHaveNoTensor) {
  const auto with_target = [&](const nlohmann::json& target, const nlohmann::json& excluded) {
    std::filesystem::remove_all(adapter_dir());
    tests::WriteRandomAdapter(directory_.path() / "model", 4, 1, adapter_dir());
    const auto path = adapter_dir() / "adapter_config.json";
    auto config = nlohmann::json::parse(ReadWholeFile(path, 1 << 20));
    config["target_modules"].push_back(target);
    config["exclude_modules"] = excluded;
    WriteFileAtomically(path, config.dump());
  };
  for (const char* target : {"lm_head", "embed_tokens"}) {
    with_target(target, nullptr);
    ExpectRefused({"target_modules", "'" + std::string(target) + "'", "has no tensors for it"});
  }
  // Lists that fit many models name layers that this one lacks.
  with_target("query_key_value", nullptr);
  EXPECT_EQ(harness_->LoadAdapter(adapter_dir())->rank(), 4);
  with_target("lm_head", "lm_head");
  EXPECT_EQ(harness_->LoadAdapter(adapter_dir())->rank(), 4);
}

// Every golden model, so that families with fused or reversed layers take part.
class AdapterRows : public testing::TestWithParam<std::string> {};

TEST_P(AdapterRows, DependOnTheirOwnAdapterAloneWhateverTheBatch) {
  const tests::Golden golden = tests::LoadGolden(GetParam());
  const tests::TemporaryDir directory;
  tests::WriteRandomAdapter(golden.dir, 4, 1, directory.path() / "one");
  tests::WriteRandomAdapter(golden.dir, 7, 2, directory.path() / "two");
  const std::vector<TokenId>& tokens = golden.sequences[0].input_ids;
  const auto half = tokens.begin() + static_cast<ptrdiff_t>(tokens.size() / 2);
  const std::vector<std::string> names = tests::GoldenNames();
  const auto turn =
      static_cast<size_t>(std::find(names.begin(), names.end(), GetParam()) - names.begin());
  constexpr std::pair<DType, BlockFormat> kFormats[] = {{DType::kF32, BlockFormat::kNone},
                                                        {DType::kBF16, BlockFormat::kNone},
                                                        {DType::kBF16, BlockFormat::kInt8},
                                                        {DType::kBF16, BlockFormat::kInt4}};
  for (const KernelTable* kernels : RunnableKernelTables()) {
    for (size_t format = 0; format < std::size(kFormats); ++format) {
      // A sanitizer checks code and not numbers.
      if (tests::kIsSanitized && !HasTurn(turn, *kernels, format, std::size(kFormats))) continue;
      const auto [dtype, block] = kFormats[format];
      SCOPED_TRACE(std::string(kernels->key) + " " + std::string(DTypeName(dtype)) + " " +
                   (block == BlockFormat::kNone ? "panels" : BlockFormatName(block)));
      ModelHarness harness(golden.dir,
                           {.dtype = dtype, .block = block, .kernels = kernels, .n_threads = 2});
      const auto one = harness.LoadAdapter(directory.path() / "one");
      const auto two = harness.LoadAdapter(directory.path() / "two");
      const std::vector<std::shared_ptr<const Adapter>> adapters = {nullptr, one, two};
      std::vector<std::vector<float>> alone;  // logits of the last position
      for (const auto& adapter : adapters) {
        harness.UseAdapter(adapter);
        const std::vector<float> logits = harness.Prefill(tokens, 0);
        EXPECT_EQ(harness.Prefill(tokens, 5), logits);
        alone.emplace_back(logits.end() - harness.vocab_size(), logits.end());
      }
      EXPECT_NE(alone[0], alone[1]);
      EXPECT_NE(alone[1], alone[2]);

      // Two sequences of each, in an order that separates an adapter's rows, in two chunks.
      const std::vector<size_t> order = {1, 0, 2, 1, 2, 0};
      std::vector<ModelHarness::Sequence> sequences;
      for (const size_t who : order) sequences.push_back({.adapter = adapters[who].get()});
      std::vector<ModelHarness::Part> parts;
      for (auto& sequence : sequences) parts.push_back({&sequence, {tokens.begin(), half}});
      harness.Step(parts, ModelHarness::Rows::kLastOfEach);
      for (auto& part : parts) part.tokens.assign(half, tokens.end());
      const std::vector<float> logits = harness.Step(parts, ModelHarness::Rows::kLastOfEach);

      const auto vocab = static_cast<size_t>(harness.vocab_size());
      for (size_t i = 0; i < order.size(); ++i) {
        const auto begin = logits.begin() + static_cast<ptrdiff_t>(i * vocab);
        const std::vector<float> mine(begin, begin + static_cast<ptrdiff_t>(vocab));
        EXPECT_EQ(mine, alone[order[i]]) << "part " << i;
      }
      for (auto& sequence : sequences) harness.Drop(sequence);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllModels, AdapterRows, testing::ValuesIn(tests::GoldenNames()),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tandem::engine
