// GGUF targets: the file is the same model to our reader and by the format's rules.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "convert/convert.h"
#include "convert/formats/gguf/gguf.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/formats/gguf/gguf_names.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/stored_head.h"
#include "tests/convert/families.h"
#include "tests/support/adapters.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/golden.h"
#include "tests/support/model_harness.h"
#include "tests/support/own_head.h"
#include "tests/support/temporary_dir.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using engine::ModelDir;
using tests::Golden;
using tests::GoldenSequence;
using tests::ModelHarness;

class GgufConvertTest : public testing::Test {
 protected:
  GgufConvertTest() : pool_(2), ops_(engine::Kernels(), pool_) {}

  ConvertResult Run(const fs::path& source, const fs::path& target, const std::string& format,
                    const std::string& dtype, const fs::path& base = {}) {
    ConvertSpec spec;
    spec.source = source;
    spec.base = base;
    spec.target = target;
    spec.format = format;
    spec.dtype = dtype;
    JobContext context;
    context.report = [&](const ProgressEvent& event) {
      if (event.kind == "warning") warnings_.push_back(event.message);
    };
    return Convert(spec, context, ops_);
  }
  std::optional<Error> Fault(const fs::path& source, const std::string& dtype) {
    try {
      Run(source, dir_ / "refused.gguf", "gguf", dtype);
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "was not refused";
    return std::nullopt;
  }
  // Models that GGUF's readers cannot hold; their messages have tests of their own.
  static bool IsRefused(const std::string& golden) {
    const fs::path dir = tests::LoadGolden(golden).dir;
    const auto json =
        nlohmann::ordered_json::parse(engine::ReadWholeFile(dir / "config.json", 1 << 20));
    const engine::FamilySpec& family = engine::FindFamily(json, golden);
    // Multipliers within the weights change these.
    if (family.gguf == nullptr || family.gguf->folded != nullptr) return true;
    const engine::ModelConfig config = family.parse_config(json, golden);
    const auto limits = engine::GgufArchitectureOf(family, config).limits;
    return std::any_of(limits.begin(), limits.end(),
                       [&](engine::GgufLimit limit) { return !limit(config).empty(); });
  }
  static const char* TypeOf(const ModelDir& model) {
    switch (model.FindStored(model.tensor_names().front())->view.dtype) {
      case DType::kBF16:
        return "bf16";
      default:
        return "f32";
    }
  }
  // Expects the same tensors, bit for bit; buffers that are not weights may be missing.
  static void ExpectSameTensors(const ModelDir& source, const ModelDir& other) {
    for (const std::string& name : source.tensor_names()) {
      if (name.ends_with("attn.bias") || name.ends_with("masked_bias")) continue;
      const engine::StoredTensor *wanted = source.FindStored(name), *is = other.FindStored(name);
      ASSERT_NE(is, nullptr) << name;
      EXPECT_EQ(is->view.dtype, wanted->view.dtype) << name;
      std::span<const std::byte> bytes = is->bytes();
      if (name == "model.embed_tokens_per_layer.weight") {  // the file has a row for each token
        EXPECT_GE(is->view.shape[0], wanted->view.shape[0]);
        bytes = bytes.first(std::min(bytes.size(), wanted->bytes().size()));
      } else {
        EXPECT_EQ(is->view.shape, wanted->view.shape) << name;
      }
      EXPECT_TRUE(std::ranges::equal(bytes, wanted->bytes())) << name;
    }
  }

  tests::TemporaryDir dir_;
  ThreadPool pool_;
  engine::OpsContext ops_;
  std::vector<std::string> warnings_;
};

TEST_F(GgufConvertTest, EveryFamilyComesBackBitForBit) {
  int families = 0;
  for (const std::string& name : ModelsOfEveryFamily()) {
    if (IsRefused(name)) continue;
    SCOPED_TRACE(name);
    ++families;
    const ModelDir source = ModelDir::Open(tests::LoadGolden(name).dir);
    const std::string own = TypeOf(source);
    for (const std::string& dtype : {std::string("f32"), own, std::string()}) {
      SCOPED_TRACE("dtype " + dtype);
      const fs::path file = dir_ / "model.gguf", back = dir_ / "back";

      const ConvertResult result = Run(tests::LoadGolden(name).dir, file, "gguf", dtype);
      Run(file, back, "hf", own);

      EXPECT_EQ(result.path, "model.gguf");
      EXPECT_EQ(result.dtype, dtype.empty() ? own : dtype);
      ExpectSameTensors(source, ModelDir::Open(back));
      fs::remove_all(back);
      fs::remove(file);
      fs::remove(dir_ / "model.gguf.convert.json");
    }
  }
  EXPECT_GE(families, kIsSanitized ? 3 : 18);
}

TEST_F(GgufConvertTest, AHeadOfItsOwnIsConvertedAlthoughTheConfigTiesIt) {
  const fs::path model = dir_ / "model";
  bench::RandomModelSpec spec;
  spec.config = bench::TinyLlamaConfig();
  spec.config.tied_embeddings = true;
  spec.with_tokenizer = true;
  bench::WriteRandomModel(spec, model);
  tests::StoreHead(model, /*is_copy=*/false);

  const ConvertResult result = Run(model, dir_ / "model.gguf", "gguf", "f32");

  ASSERT_EQ(std::count(warnings_.begin(), warnings_.end(), engine::kOwnHeadNote), 1);
  const ModelDir written = ModelDir::Open(dir_ / "model.gguf");
  const engine::StoredTensor* head = written.FindStored("lm_head.weight");
  ASSERT_NE(head, nullptr);
  const ModelDir source = ModelDir::Open(model);
  EXPECT_EQ(engine::DecodeTensor(*head),
            engine::DecodeTensor(*source.FindStored("lm_head.weight")));
  const auto certificate = nlohmann::json::parse(result.certificate_json);
  EXPECT_EQ(certificate["state"], "measured");
  EXPECT_LT(certificate["max_kl"], 1e-4);

  // An equal copy stays tied, without a warning.
  tests::StoreHead(model, /*is_copy=*/true);
  warnings_.clear();
  Run(model, dir_ / "tied.gguf", "gguf", "f32");
  EXPECT_EQ(ModelDir::Open(dir_ / "tied.gguf").FindStored("lm_head.weight"), nullptr);
  EXPECT_EQ(std::count(warnings_.begin(), warnings_.end(), engine::kOwnHeadNote), 0);
}

// The writer in tests/support is an independent implementation of the format.
TEST_F(GgufConvertTest, TensorsAreThoseOfAWriterMadeApart) {
  for (const std::string& name : ModelsOfEveryFamily()) {
    if (IsRefused(name) || !tests::CanConvertToGguf(tests::LoadGolden(name).dir)) continue;
    for (const auto& [dtype, encoding] :
         {std::pair{"f32", engine::Encoding::kPlain}, std::pair{"q8_0", engine::Encoding::kQ8_0},
          std::pair{"q4_0", engine::Encoding::kQ4_0}}) {
      SCOPED_TRACE(name + " " + dtype);
      const Golden golden = tests::LoadGolden(name);
      const fs::path file = dir_ / (name + "." + dtype + ".gguf");
      Run(golden.dir, file, "gguf", dtype);
      const std::string expected_bytes =
          tests::ConvertToGguf(golden.dir, {.matrices = encoding}).Bytes();
      const auto expected =
          engine::GgufFile::FromBytes(std::as_bytes(std::span(expected_bytes)), "expected");
      const auto mapped = engine::MappedFile::Open(file);
      const auto written = engine::GgufFile::FromBytes(mapped->bytes(), "written");

      ASSERT_EQ(written.tensors().size(), expected.tensors().size());
      for (const engine::GgufFile::Tensor& wanted : expected.tensors()) {
        const engine::GgufFile::Tensor* is = written.Find(wanted.name);
        ASSERT_NE(is, nullptr) << wanted.name;
        EXPECT_EQ(is->shape, wanted.shape) << wanted.name;
        if (wanted.name == "rope_freqs.weight") continue;  // computed; compared below
        const bool is_logits =
            wanted.name == "output.weight" ||
            (wanted.name == "token_embd.weight" && written.Find("output.weight") == nullptr);
        if (encoding == engine::Encoding::kQ4_0 && is_logits) {
          if (wanted.encoding == encoding) {
            EXPECT_EQ(is->encoding, engine::Encoding::kQ8_0) << wanted.name;
          }
          continue;
        }
        if (wanted.name == "position_embd.weight") {
          EXPECT_EQ(is->encoding, engine::Encoding::kPlain);
          continue;
        }
        EXPECT_EQ(is->encoding, wanted.encoding) << wanted.name;
        EXPECT_EQ(is->dtype, wanted.dtype) << wanted.name;
        EXPECT_TRUE(std::ranges::equal(is->data, wanted.data)) << wanted.name;
      }
    }
  }
}

TEST_F(GgufConvertTest, AFileComputesWhatItsFixtureSays) {
  for (const std::string& name : ModelsOfEveryFamily()) {
    if (IsRefused(name)) continue;
    SCOPED_TRACE(name);
    const Golden golden = tests::LoadGolden(name);
    const fs::path file = dir_ / (name + ".gguf");
    Run(golden.dir, file, "gguf", "f32");
    ModelHarness harness(file, {.dtype = DType::kF32});
    for (const GoldenSequence& sequence : golden.sequences) {
      const std::vector<float> logits = harness.Prefill(sequence.input_ids, 0);
      ASSERT_EQ(logits.size(), sequence.logits.size());
      for (size_t i = 0; i < logits.size(); ++i) {
        ASSERT_NEAR(logits[i], sequence.logits[i], 1e-4 * sequence.logits_max_abs);
      }
    }
  }
}

TEST_F(GgufConvertTest, WhatWasLostIsToldOfEveryTensor) {
  const Golden golden = tests::LoadGolden("gemma3-text-tiny");
  std::map<std::string, double> rms_of;
  for (const char* dtype : {"f32", "bf16", "f16", "q8_0", "q4_0"}) {
    SCOPED_TRACE(dtype);
    const ConvertResult result =
        Run(golden.dir, dir_ / (std::string(dtype) + ".gguf"), "gguf", dtype);
    const auto report = nlohmann::json::parse(result.report_json);
    const double rms = report["relative_rms"];
    rms_of[dtype] = rms;
    EXPECT_EQ(report["worst_relative_rms"] > 0, rms > 0);
    const auto record =
        nlohmann::json::parse(std::ifstream(dir_ / (std::string(dtype) + ".gguf.convert.json")));
    EXPECT_GT(record["gguf"]["tensors"].size(), 20u);
    EXPECT_EQ(record["gguf"]["relative_rms"], report["relative_rms"]);
    // `bytes` counts the stored blocks, not the f32 values they decode to: nearly the whole file.
    const fs::path file = dir_ / (std::string(dtype) + ".gguf");
    const auto file_bytes = static_cast<int64_t>(fs::file_size(file));
    EXPECT_EQ(record["bytes"], result.bytes);
    EXPECT_LT(result.bytes, file_bytes);
    EXPECT_GT(result.bytes, file_bytes - (16 << 10));
    const fs::path back = dir_ / (std::string(dtype) + "-back");
    Run(file, back, "hf", "");
    const auto of_back = nlohmann::json::parse(std::ifstream(back / "convert.json"));
    EXPECT_EQ(of_back["parents"][0]["bytes"], result.bytes);
    EXPECT_EQ(nlohmann::json::parse(ConvertResultJson(result))["gguf"], report);
  }
  // The model is in bf16; f16 lacks its smallest numbers.
  for (const char* dtype : {"f32", "bf16"}) EXPECT_EQ(rms_of[dtype], 0) << dtype;
  EXPECT_LT(rms_of["f16"], 1e-6);
  EXPECT_GT(rms_of["q8_0"], 1e-4);
  EXPECT_LT(rms_of["q8_0"], 1e-2);
  EXPECT_GT(rms_of["q4_0"], 1e-2);
  EXPECT_LT(rms_of["q4_0"], 0.15);
}

// The class of Gemma 3 in transformers has windows by default, and needs a length even without one.
TEST_F(GgufConvertTest, AModelWithoutWindowsListsItsFullLayers) {
  const fs::path model = dir_ / "full";
  fs::copy(tests::LoadGolden("gemma3-text-tiny").dir, model);
  auto config = nlohmann::json::parse(std::ifstream(model / "config.json"));
  const std::vector<std::string> types(config["num_hidden_layers"].get<size_t>(), "full_attention");
  config["layer_types"] = types;
  std::ofstream(model / "config.json") << config;
  Run(model, dir_ / "full.gguf", "gguf", "f32");
  Run(dir_ / "full.gguf", dir_ / "back", "hf", "");

  const auto back = nlohmann::json::parse(std::ifstream(dir_ / "back" / "config.json"));

  EXPECT_GT(back["sliding_window"], 0);
  EXPECT_EQ(back["layer_types"], nlohmann::json(types));
}

TEST_F(GgufConvertTest, AnAdapterIsMergedIntoOneFile) {
  const Golden golden = tests::LoadGolden("gemma2-tiny/lora");
  const ConvertResult result =
      Run(golden.adapter_dir, dir_ / "merged.gguf", "gguf", "f32", golden.dir);
  EXPECT_FALSE(result.merge_json.empty());
  ModelHarness harness(dir_ / "merged.gguf", {.dtype = DType::kF32});
  for (const GoldenSequence& sequence : golden.sequences) {
    const std::vector<float> logits = harness.Prefill(sequence.input_ids, 0);
    for (size_t i = 0; i < logits.size(); ++i) {
      ASSERT_NEAR(logits[i], sequence.logits[i], 0.02 * sequence.logits_max_abs);
    }
  }
}

TEST_F(GgufConvertTest, BlocksAreDecodedWithAWarning) {
  const Golden golden = tests::LoadGolden("gemma3-text-tiny");
  Run(golden.dir, dir_ / "small.gguf", "gguf", "q8_0");
  warnings_.clear();
  const ConvertResult result = Run(dir_ / "small.gguf", dir_ / "hf", "hf", "");
  EXPECT_EQ(result.dtype, "f32");
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find("quantised"), std::string::npos) << warnings_[0];
  ModelHarness from(dir_ / "small.gguf", {.dtype = DType::kF32});
  ModelHarness to(dir_ / "hf", {.dtype = DType::kF32});
  EXPECT_EQ(from.Prefill(golden.sequences[0].input_ids, 0),
            to.Prefill(golden.sequences[0].input_ids, 0));
}

TEST_F(GgufConvertTest, WhatHasNoArchitectureIsRefusedNamingIt) {
  const auto family = Fault(tests::LoadGolden("minigpt-tiny").dir, "f32");
  ASSERT_TRUE(family);
  EXPECT_EQ(family->code(), ErrorCode::kUnsupported);
  EXPECT_NE(std::string(family->what()).find("'minigpt'"), std::string::npos) << family->what();
  EXPECT_NE(std::string(family->what()).find("native"), std::string::npos) << family->what();

  const auto scalar = Fault(tests::LoadGolden("gemma2-tiny-query-scalar").dir, "f32");
  ASSERT_TRUE(scalar);
  EXPECT_EQ(scalar->code(), ErrorCode::kUnsupported);
  EXPECT_NE(std::string(scalar->what()).find("query_pre_attn_scalar"), std::string::npos)
      << scalar->what();
  EXPECT_FALSE(fs::exists(dir_ / "refused.gguf"));
  EXPECT_FALSE(fs::exists(dir_ / "refused.gguf.convert.json"));
}

class GgufConfigTest : public GgufConvertTest {
 protected:
  // Copies a golden model with other fields in its config.json.
  fs::path Changed(const std::string& golden, const nlohmann::json& fields) {
    const fs::path dir = dir_ / "changed";
    fs::remove_all(dir);
    fs::copy(tests::LoadGolden(golden).dir, dir);
    auto config = nlohmann::json::parse(std::ifstream(dir / "config.json"));
    config.update(fields);
    std::ofstream(dir / "config.json") << config;
    return dir;
  }
};

TEST_F(GgufConfigTest, SettingsComeBack) {
  const std::vector<std::pair<std::string, nlohmann::json>> cases = {
      {"llama2-tiny-two-shards", {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 4.0}}}}},
      {"llama2-tiny-two-shards",
       {{"rope_scaling",
         {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}}}}},
      {"qwen3-tiny",
       {{"rope_scaling",
         {{"rope_type", "yarn"},
          {"factor", 4.0},
          {"original_max_position_embeddings", 32},
          {"attention_factor", 1.25},
          {"beta_fast", 16.0}}}}},
      {"gemma3-text-tiny", {{"sliding_window_pattern", 3}}},
      {"gemma3-text-tiny", {{"final_logit_softcapping", 12.0}}},
      {"mistral-tiny", {{"sliding_window", nullptr}}},
      {"llama4-tiny",
       {{"no_rope_layers", {1, 1, 1}},
        {"attention_chunk_size", 8192},
        {"floor_scale", 8192},
        {"attn_scale", 0.1}}},
  };
  for (const auto& [golden, fields] : cases) {
    SCOPED_TRACE(golden + " " + fields.dump());
    const fs::path source = Changed(golden, fields), file = dir_ / "model.gguf";
    Run(source, file, "gguf", "f32");
    const std::vector<TokenId> tokens = tests::LoadGolden(golden).sequences[0].input_ids;
    ModelHarness from(source, {.dtype = DType::kF32});
    ModelHarness to(file, {.dtype = DType::kF32});
    const std::vector<float> wanted = from.Prefill(tokens, 0), is = to.Prefill(tokens, 0);
    ASSERT_EQ(is.size(), wanted.size());
    // The file stores factors as 32-bit floats.
    for (size_t i = 0; i < is.size(); ++i) ASSERT_NEAR(is[i], wanted[i], 1e-4);
    fs::remove(file);
    fs::remove(dir_ / "model.gguf.convert.json");
  }
}

TEST_F(GgufConfigTest, SettingsThatReadersFixOtherwiseAreRefused) {
  const std::vector<std::tuple<std::string, nlohmann::json, std::string>> cases = {
      {"qwen3-tiny", {{"hidden_act", "gelu_pytorch_tanh"}}, "activation"},
      {"gemma2-tiny", {{"attn_logit_softcapping", nullptr}}, "attn_logit_softcapping"},
      {"gemma2-tiny", {{"query_pre_attn_scalar", 48}}, "query_pre_attn_scalar"},
      {"gpt2-tiny", {{"scale_attn_weights", false}}, "scale_attn_weights"},
      {"llama4-tiny", nlohmann::json::object(), "attention_chunk_size"},
      {"llama4-tiny", {{"attention_chunk_size", 8192}}, "no_rope_layers"},
      {"llama4-tiny", {{"no_rope_layers", {1, 1, 1}}}, "attention_chunk_size"},
      {"llama4-tiny",
       {{"no_rope_layers", {1, 1, 1}}, {"attention_chunk_size", 8192}},
       "attn_scale"},
      {"qwen3-tiny",
       {{"rope_scaling",
         {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 64}}}},
       "llama3"},
  };
  for (const auto& [golden, fields, named] : cases) {
    SCOPED_TRACE(golden + " " + fields.dump());
    const auto error = Fault(Changed(golden, fields), "f32");
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error->what()).find(named), std::string::npos) << error->what();
  }
}

}  // namespace
}  // namespace tandem::convert
