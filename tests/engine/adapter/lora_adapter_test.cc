// PEFT adapters: valid ones load. Inconsistent or unsupported ones are refused with one line that
// names the file and the field or tensor.

#include "engine/adapter/lora_adapter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/adapter/name_ends.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

Json PlainConfig() {
  return Json{{"peft_type", "LORA"}, {"r", 2},
              {"lora_alpha", 6},     {"target_modules", {"q_proj"}},
              {"bias", "none"},      {"modules_to_save", nullptr},
              {"use_dora", false}};
}

constexpr const char* kA = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
constexpr const char* kB = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";

using Shapes = std::map<std::string, std::vector<int64_t>>;
Shapes PlainShapes() { return {{kA, {2, 4}}, {kB, {6, 2}}}; }

class LoraAdapterTest : public testing::Test {
 protected:
  void Write(const std::string& config, const Shapes& shapes, DType dtype = DType::kF32,
             const std::map<std::string, std::string>& metadata = {}) {
    std::filesystem::remove_all(dir());
    std::filesystem::create_directories(dir());
    WriteFileAtomically(dir() / "adapter_config.json", config);
    static const std::vector<std::byte> zeros(1 << 16);
    std::vector<NamedTensor> tensors;
    for (const auto& [name, shape] : shapes)
      tensors.push_back({name, {zeros.data(), dtype, shape}});
    WriteSafetensors(dir() / "adapter_model.safetensors", tensors, metadata);
  }
  LoraAdapter Open() const { return LoraAdapter::Open(dir()); }
  std::filesystem::path dir() const { return directory_.path() / "adapter"; }

  void ExpectRefused(ErrorCode code, const std::vector<std::string>& parts) const {
    try {
      Open();
      ADD_FAILURE() << "was not refused: " << parts[0];
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.code(), code) << message;
      EXPECT_EQ(message.find_first_of("\r\n"), std::string::npos) << message;
      EXPECT_LT(message.size(), 1000u);
      for (const std::string& part : parts) {
        EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
      }
    }
  }

 private:
  tests::TemporaryDir directory_;
};

TEST_F(LoraAdapterTest, ReadsPairsWithTheirScale) {
  Write(PlainConfig().dump(), PlainShapes());

  const LoraAdapter adapter = Open();

  ASSERT_EQ(adapter.modules().size(), 1u);
  const LoraModule& module = adapter.modules()[0];
  EXPECT_EQ(module.path, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(module.rank, 2);
  EXPECT_EQ(module.scale, 3);
  EXPECT_EQ(module.a.shape, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(module.b.shape, (std::vector<int64_t>{6, 2}));
}

TEST_F(LoraAdapterTest, NamesMayHoldTheAdaptersOwn) {
  Write(PlainConfig().dump(),
        {{"base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight", {2, 4}},
         {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight", {6, 2}}});

  EXPECT_EQ(Open().modules()[0].path, "model.layers.0.self_attn.q_proj");
}

TEST_F(LoraAdapterTest, RankStabilizedScaleDividesByTheRoot) {
  Json config = PlainConfig();
  config["use_rslora"] = true;
  config["r"] = 4;
  Write(config.dump(), {{kA, {4, 4}}, {kB, {6, 4}}});

  EXPECT_EQ(Open().modules()[0].scale, 3);
}

TEST_F(LoraAdapterTest, PatternsGiveAModuleItsOwnRankAndAlpha) {
  for (const char* key : {"q_proj", "self_attn.q_proj", "^model.layers.0.self_attn.q_proj"}) {
    Json config = PlainConfig();
    config["rank_pattern"] = {{"other", 8}, {key, 1}};
    config["alpha_pattern"] = {{key, 5}};
    Write(config.dump(), {{kA, {1, 4}}, {kB, {6, 1}}});

    EXPECT_EQ(Open().modules()[0].rank, 1) << key;
    EXPECT_EQ(Open().modules()[0].scale, 5) << key;
  }
}

TEST_F(LoraAdapterTest, TheFirstEntryOfAPatternThatMatchesCounts) {
  for (const bool swaps : {false, true}) {
    Json config = PlainConfig();
    Json& pattern = config["alpha_pattern"] = Json::object();
    pattern[swaps ? "self_attn.q_proj" : "q_proj"] = 5;
    pattern["^q_proj"] = 9;  // no whole path
    pattern[swaps ? "q_proj" : "self_attn.q_proj"] = 7;
    Write(config.dump(), PlainShapes());

    EXPECT_EQ(Open().modules()[0].scale, 2.5f);
  }
}

// A config of the largest size and many tensors: a product of both would take minutes.
TEST_F(LoraAdapterTest, ManyEntriesCostNoMoreThanTheirSize) {
  Json config = PlainConfig();
  Json saved = {"m"};
  std::string ranks;
  for (int i = 0; i < 100'000; ++i) {
    saved.push_back("x" + std::to_string(i) + "y");
    ranks += (i == 0 ? "\"x" : ",\"x") + std::to_string(i) + "\":1";
  }
  config["modules_to_save"] = saved;
  std::string text = config.dump();
  text.pop_back();
  text += ",\"rank_pattern\":{" + ranks + "}}";
  Shapes shapes = PlainShapes();
  for (int i = 0; i < 20'000; ++i) {
    shapes["base_model.model.b" + std::to_string(i) + ".m.weight"] = {1};
  }
  Write(text, shapes);

  const LoraAdapter adapter = Open();
  EXPECT_EQ(adapter.saved().size(), 20'000u);
  EXPECT_EQ(adapter.saved_without_tensors().size(), 100'000u);
  EXPECT_EQ(adapter.modules().at(0).rank, 2);
}

TEST(NameEnds, AreThoseOfAPlainSearch) {
  const std::vector<std::string> texts = {"",   "a",  "b",   "ab",  "ba",  "aab", "bab",
                                          "bb", "aa", "abb", "b.a", "a.b", ".a"};
  for (size_t set = 0; set < size_t{1} << texts.size(); set += 7) {
    std::vector<std::string> ends;
    EndedNames names;
    for (size_t i = 0; i < texts.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      ends.push_back(texts[i]);
      names.Add(texts[i]);
    }
    const NameEnds searched(ends);
    for (const std::string& text : texts) {
      EXPECT_EQ(searched.HasEndOf(text),
                std::any_of(ends.begin(), ends.end(),
                            [&](const std::string& end) { return text.ends_with(end); }));
      EXPECT_EQ(names.HasNameWith(text),
                std::any_of(ends.begin(), ends.end(),
                            [&](const std::string& name) { return name.ends_with(text); }));
    }
  }
}

TEST_F(LoraAdapterTest, TargetsMayBeAnExpressionForTheTensorsSayWhichTheyAre) {
  for (const char* targets : {"all-linear", R"(.*\.(q|k)_proj)"}) {
    Json config = PlainConfig();
    config["target_modules"] = targets;
    Write(config.dump(), PlainShapes());

    EXPECT_EQ(Open().modules().size(), 1u);
  }
}

TEST_F(LoraAdapterTest, ContentHashTellsConfigsAndTensorsApart) {
  Write(PlainConfig().dump(), PlainShapes());
  const std::string plain = Open().content_hash();
  Write(PlainConfig().dump(), PlainShapes());
  EXPECT_EQ(Open().content_hash(), plain);

  Json config = PlainConfig();
  config["lora_alpha"] = 7;
  Write(config.dump(), PlainShapes());
  EXPECT_NE(Open().content_hash(), plain);
  Write(PlainConfig().dump(), {{kA, {2, 5}}, {kB, {6, 2}}});
  EXPECT_NE(Open().content_hash(), plain);
}

TEST_F(LoraAdapterTest, WhatWeWriteWeRead) {
  LoraConfig config;
  config.base_model = "base";
  config.rank = 2;
  config.alpha = 0.5;
  config.target_modules = {"model.layers.0.self_attn.q_proj"};
  const auto [a, b] = LoraTensorNames("model.layers.0.self_attn.q_proj");
  Write(LoraConfigText(config), {{a, {2, 4}}, {b, {6, 2}}});

  EXPECT_EQ(Open().modules()[0].scale, 0.25f);
}

constexpr const char* kQ = "base_model.model.model.layers.0.self_attn.q_proj";
constexpr const char* kTable = "base_model.model.model.embed_tokens";

TEST_F(LoraAdapterTest, HasTheMagnitudesOfDora) {
  Json config = PlainConfig();
  config["use_dora"] = true;
  for (const char* end : {"", ".default", ".weight", ".default.weight"}) {
    const std::string name = std::string(kQ) + ".lora_magnitude_vector" + end;
    Write(config.dump(), {{kA, {2, 4}}, {kB, {6, 2}}, {name, {6}}});
    EXPECT_TRUE(Open().is_dora());
    EXPECT_EQ(Open().modules().at(0).magnitude.elements(), 6) << name;
  }
  Write(config.dump(), PlainShapes());
  ExpectRefused(ErrorCode::kDataLoss, {"lora_magnitude_vector", "is missing"});
  Write(config.dump(),
        {{kA, {2, 4}}, {kB, {6, 2}}, {MagnitudeName("model.layers.0.self_attn.q_proj"), {5}}});
  ExpectRefused(ErrorCode::kDataLoss, {"lora_magnitude_vector", "5 elements", "6 outputs"});
  config["use_dora"] = false;
  Write(config.dump(),
        {{kA, {2, 4}}, {kB, {6, 2}}, {MagnitudeName("model.layers.0.self_attn.q_proj"), {6}}});
  ExpectRefused(ErrorCode::kDataLoss, {"lora_magnitude_vector", "use_dora"});
}

TEST_F(LoraAdapterTest, HasEmbeddingsAndWhatPeftAddsForThem) {
  Json config = PlainConfig();
  config["target_modules"] = {"q_proj", "embed_tokens"};
  const std::string table = kTable;
  const Shapes shapes = {{kA, {2, 4}},
                         {kB, {6, 2}},
                         {table + ".lora_embedding_A", {2, 9}},
                         {table + ".lora_embedding_B", {4, 2}},
                         {table + ".base_layer.weight", {9, 4}}};
  Write(config.dump(), shapes);
  const LoraAdapter adapter = Open();
  ASSERT_EQ(adapter.modules().size(), 2u);
  EXPECT_TRUE(adapter.modules()[0].is_embedding);
  EXPECT_EQ(adapter.modules()[0].path, "model.embed_tokens");
  ASSERT_EQ(adapter.base_copies().size(), 1u);
  EXPECT_EQ(adapter.base_copies()[0].path, "model.embed_tokens");

  config["ensure_weight_tying"] = true;
  Write(config.dump(), shapes);
  ExpectRefused(ErrorCode::kUnsupported, {"ensure_weight_tying"});
  config["ensure_weight_tying"] = false;
  Write(config.dump(), {{kA, {2, 4}},
                        {kB, {6, 2}},
                        {table + ".lora_embedding_A", {2, 9}},
                        {table + ".lora_B.weight", {4, 2}}});
  ExpectRefused(ErrorCode::kDataLoss, {"embed_tokens", "of a linear layer and of an embedding"});
}

TEST_F(LoraAdapterTest, HasTheCopiesOfModulesToSave) {
  Json config = PlainConfig();
  config["modules_to_save"] = {"norm", "classifier"};
  for (const char* middle : {"", ".modules_to_save", ".modules_to_save.default"}) {
    const std::string norm = "base_model.model.model.norm" + std::string(middle);
    Write(config.dump(),
          {{kA, {2, 4}}, {kB, {6, 2}}, {norm + ".weight", {4}}, {norm + ".bias", {4}}});
    const LoraAdapter adapter = Open();
    ASSERT_EQ(adapter.saved().size(), 2u);
    EXPECT_EQ(adapter.saved()[0].path, "model.norm");
    EXPECT_EQ(adapter.saved()[0].leaf + adapter.saved()[1].leaf, "biasweight");
    EXPECT_EQ(adapter.saved_without_tensors(), std::vector<std::string>{"classifier"});
  }
  Write(config.dump(), {{kA, {2, 4}}, {kB, {6, 2}}, {"base_model.model.lm_head.weight", {9, 4}}});
  ExpectRefused(ErrorCode::kUnsupported, {"lm_head", "modules_to_save"});
  Write(config.dump(), {{"base_model.model.model.norm.weight", {4}}}, DType::kI16);
  ExpectRefused(ErrorCode::kUnsupported, {"model.norm", "i16"});
}

TEST_F(LoraAdapterTest, TellsTargetsWithoutTensors) {
  using Names = std::set<std::string, std::less<>>;
  Json config = PlainConfig();
  config["target_modules"] = {"self_attn.q_proj", "v_proj", "proj", "q_proj"};
  Write(config.dump(), PlainShapes());
  EXPECT_EQ(Open().targets_without_tensors(), (Names{"proj", "v_proj"}));

  config["exclude_modules"] = {"v_proj", "proj"};
  Write(config.dump(), PlainShapes());
  EXPECT_TRUE(Open().targets_without_tensors().empty());
}

TEST_F(LoraAdapterTest, SaysWhichBaseItWasTrainedBeside) {
  Json config = PlainConfig();
  config["base_model_name_or_path"] = "org/base";
  Write(config.dump(), PlainShapes(), DType::kF32, LoraMetadata("00ff", DType::kBF16, "int4"));

  EXPECT_EQ(Open().origin().base_model, "org/base");
  EXPECT_EQ(Open().origin().base_hash, "00ff");
  EXPECT_EQ(Open().origin().compute, "bf16");
  EXPECT_EQ(Open().origin().weights, "int4");

  config["base_model_name_or_path"] = nullptr;
  Write(config.dump(), PlainShapes());
  EXPECT_EQ(Open().origin().base_model, "");
  EXPECT_EQ(Open().origin().base_hash, "");
  EXPECT_EQ(Open().origin().compute, "");
  EXPECT_EQ(Open().origin().weights, "");
}

TEST_F(LoraAdapterTest, RefusesConfigsThatAskForOtherArithmetic) {
  const std::vector<std::tuple<const char*, Json, ErrorCode>> cases = {
      {"peft_type", "LOKR", ErrorCode::kUnsupported},
      {"peft_type", 3, ErrorCode::kDataLoss},
      {"peft_type", "LORA\nfield 'r' is fine", ErrorCode::kUnsupported},
      {"use_dora", "yes", ErrorCode::kDataLoss},
      {"modules_to_save", "lm_head", ErrorCode::kDataLoss},
      {"modules_to_save", {1}, ErrorCode::kDataLoss},
      {"bias", "all", ErrorCode::kUnsupported},
      {"bias", "all\r\n", ErrorCode::kUnsupported},
      {"lora_bias", true, ErrorCode::kUnsupported},
      {"use_qalora", true, ErrorCode::kUnsupported},
      {"layer_replication", {{0, 4}}, ErrorCode::kUnsupported},
      {"trainable_token_indices", {1, 2}, ErrorCode::kUnsupported},
      {"target_parameters", {"experts"}, ErrorCode::kUnsupported},
      {"alora_invocation_tokens", {1}, ErrorCode::kUnsupported},
      {"something_new", 1, ErrorCode::kUnsupported},
      {"init_lora_weights", "pissa", ErrorCode::kUnsupported},
      {"init_lora_weights", "pissa\n", ErrorCode::kUnsupported},
      {"init_lora_weights", 1, ErrorCode::kDataLoss},
      {"r", 0, ErrorCode::kDataLoss},
      {"r", -3, ErrorCode::kDataLoss},
      {"r", 1e18, ErrorCode::kDataLoss},
      {"r", "16", ErrorCode::kDataLoss},
      {"lora_alpha", -1, ErrorCode::kDataLoss},
      {"lora_alpha", 1e30, ErrorCode::kDataLoss},
      {"use_rslora", "yes", ErrorCode::kDataLoss},
      {"rank_pattern", {1}, ErrorCode::kDataLoss},
      {"rank_pattern", {{"q_proj", 0}}, ErrorCode::kDataLoss},
      {"rank_pattern", {{"q_proj", "2"}}, ErrorCode::kDataLoss},
      {"rank_pattern", {{"q_proj", 2.5}}, ErrorCode::kDataLoss},
      {"rank_pattern", {{R"(.*\.(q|k)_proj)", 2}}, ErrorCode::kUnsupported},
      {"alpha_pattern", {{"q_proj", -2}}, ErrorCode::kDataLoss},
      {"alpha_pattern", {{"q_proj\nk_proj", 2}}, ErrorCode::kUnsupported},
      {"target_modules", 3, ErrorCode::kDataLoss},
      {"target_modules", {1}, ErrorCode::kDataLoss}};
  for (const auto& [field, value, code] : cases) {
    SCOPED_TRACE(std::string(field) + ": " + value.dump());
    Json config = PlainConfig();
    config[field] = value;
    Write(config.dump(), PlainShapes());

    ExpectRefused(code, {"adapter_config.json", field});
  }
}

TEST_F(LoraAdapterTest, NamesOfFieldsStayOnOneShortLine) {
  for (const std::string& name : {std::string("new\nfield"), std::string(10'000, 'x')}) {
    Json config = PlainConfig();
    config[name] = 1;
    Write(config.dump(), PlainShapes());

    ExpectRefused(ErrorCode::kUnsupported, {"adapter_config.json", "is set"});
  }
}

TEST_F(LoraAdapterTest, RefusesTensorsThatAreNoPairsOfTheirRank) {
  const std::string path = "base_model.model.model.layers.0.self_attn.q_proj";
  const std::vector<std::pair<Shapes, std::string>> cases = {
      {{}, "contains no tensors"},
      {{{kA, {2, 4}}}, kB},
      {{{kB, {6, 2}}}, kA},
      {{{kA, {3, 4}}, {kB, {6, 2}}}, kA},
      {{{kA, {2, 4}}, {kB, {6, 3}}}, kB},
      {{{kA, {4, 2}}, {kB, {2, 6}}}, kA},
      {{{kA, {2, 4, 1}}, {kB, {6, 2}}}, kA},
      {{{kA, {2}}, {kB, {6, 2}}}, kA},
      {{{kA, {2, 4}}, {kB, {6, 2}}, {path + ".lora_A.default.weight", {2, 4}}},
       "name the same matrix"},
      {{{kA, {2, 4}}, {kB, {6, 2}}, {"model.norm.weight", {4}}}, "model.norm.weight"},
      {{{path + ".lora_embedding_A", {2, 4}}}, "lora_embedding_B"},
      {{{path + ".lora_magnitude_vector", {4}}}, "lora_magnitude_vector"},
      {{{path + ".lora_B.bias", {4}}}, "lora_B.bias"},
      {{{"base_model.model..lora_A.weight", {2, 4}}}, "base_model.model."},
      {{{"base_model.model.x.k_proj.lora_A.weight", {2, 4}}}, "target_modules"},
      {{{"base_model.model.x\n.k_proj.lora_A.weight", {2, 4}}}, "target_modules"},
      {{{"base_model.model.x\n.q_proj.lora_A.weight", {2, 4}}}, "is missing"},
      {{{"base_model.model.x\n.q_proj.lora_B.weight", {6, 2}}}, "is missing"},
      {{{"base_model.model.x\n.q_proj.lora_A.weight", {3, 4}},
        {"base_model.model.x\n.q_proj.lora_B.weight", {6, 2}}},
       "has rank 3"},
      {{{"base_model.model.x\n.q_proj.lora_A.weight", {2, 4, 1}},
        {"base_model.model.x\n.q_proj.lora_B.weight", {6, 2}}},
       "has 3 axes"},
      {{{"base_model.model.x\n.q_proj.lora_A.weight", {2, 4}},
        {"base_model.model.x\n.q_proj.lora_A.default.weight", {2, 4}}},
       "name the same matrix"},
      {{{"model.norm\n.weight", {4}}}, "other tensors are not supported"},
      {{{std::string(10'000, 'x'), {4}}}, "other tensors are not supported"}};
  for (const auto& [shapes, part] : cases) {
    SCOPED_TRACE(part);
    Write(PlainConfig().dump(), shapes);
    try {
      Open();
      ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(part), std::string::npos) << message;
      EXPECT_NE(message.find("adapter_model.safetensors"), std::string::npos);
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      EXPECT_LT(message.size(), 1000u);
    }
  }
}

TEST_F(LoraAdapterTest, RefusesIntegersAndBrokenFiles) {
  Write(PlainConfig().dump(), PlainShapes(), DType::kI16);
  ExpectRefused(ErrorCode::kUnsupported, {"adapter_model.safetensors", kA, "i16"});

  Write("{\"r\": 2", PlainShapes());
  ExpectRefused(ErrorCode::kDataLoss, {"adapter_config.json"});
  Write("[]", PlainShapes());
  ExpectRefused(ErrorCode::kDataLoss, {"adapter_config.json"});
  Write(R"({"r": 2, "r": 4})", PlainShapes());
  ExpectRefused(ErrorCode::kDataLoss, {"adapter_config.json"});

  Write(PlainConfig().dump(), PlainShapes());
  std::filesystem::resize_file(dir() / "adapter_model.safetensors", 40);
  ExpectRefused(ErrorCode::kDataLoss, {"adapter_model.safetensors"});

  std::filesystem::rename(dir() / "adapter_model.safetensors", dir() / "adapter_model.bin");
  ExpectRefused(ErrorCode::kUnsupported, {"adapter_model.bin", "pickle"});
  std::filesystem::remove(dir() / "adapter_config.json");
  ExpectRefused(ErrorCode::kNotFound, {"adapter_config.json"});
  std::filesystem::remove_all(dir());
  ExpectRefused(ErrorCode::kNotFound, {dir().string()});
}

}  // namespace
}  // namespace tandem::engine
