// Conversions: the target computes what the source computes, is whole or absent, and describes
// itself.

#include "convert/convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"
#include "engine/tensor/bfloat16.h"
#include "tests/convert/convert_fixture.h"
#include "tests/convert/families.h"
#include "tests/support/adapters.h"
#include "tests/support/golden.h"
#include "tests/support/model_harness.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using tests::Golden;
using tests::GoldenSequence;
using tests::ModelHarness;

class ConvertTest : public ConversionTest {
 protected:
  ConvertSpec Spec(const fs::path& source, const fs::path& base = {}) const {
    ConvertSpec spec;
    spec.source = source;
    spec.base = base;
    spec.target = target_;
    return spec;
  }
  // The number of entries beside the target, temporaries included.
  size_t FilesBeside() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(dir_.path()), fs::directory_iterator()));
  }
  static std::vector<std::vector<TokenId>> GreedyOf(const fs::path& model, const Golden& golden,
                                                    DType dtype, const fs::path& adapter = {}) {
    ModelHarness harness(model, {.dtype = dtype});
    if (!adapter.empty()) harness.UseAdapter(harness.LoadAdapter(adapter));
    std::vector<std::vector<TokenId>> prompts;
    for (const GoldenSequence& sequence : golden.sequences) prompts.push_back(sequence.input_ids);
    return harness.Greedy(prompts, golden.sequences[0].greedy_ids.size(), 0);
  }

  const fs::path target_ = dir_.path() / "out";
};

// Every golden adapter: f32 logits within the fixture's tolerance, and the fixture's tokens in both
// dtypes.
TEST_F(ConvertTest, AMergedAdapterSaysWhatItsFixtureSays) {
  for (const std::string& name : tests::AdapterGoldenNames()) {
    SCOPED_TRACE(name);
    const Golden golden = tests::LoadGolden(name);
    for (const std::string dtype : {"", "f32", "bf16"}) {
      SCOPED_TRACE("dtype " + dtype);
      fs::remove_all(target_);
      ConvertSpec spec = Spec(golden.adapter_dir, golden.dir);
      spec.dtype = dtype;

      const ConvertResult result = Run(spec);

      EXPECT_EQ(result.path, "out");
      EXPECT_EQ(result.format, "hf");
      if (!dtype.empty()) {
        EXPECT_EQ(result.dtype, dtype);
      }
      EXPECT_GT(result.tensors, 4);
      EXPECT_GT(result.bytes, 1000);
      EXPECT_FALSE(result.merge_json.empty());
      std::vector<std::vector<TokenId>> expected;
      for (const GoldenSequence& sequence : golden.sequences) {
        expected.push_back(sequence.greedy_ids);
      }
      EXPECT_EQ(GreedyOf(target_, golden, DType::kF32), expected);
      EXPECT_EQ(GreedyOf(target_, golden, DType::kBF16), expected);
      if (dtype != "f32") continue;
      ModelHarness harness(target_, {.dtype = DType::kF32});
      for (const GoldenSequence& sequence : golden.sequences) {
        const std::vector<float> logits = harness.Prefill(sequence.input_ids, 0);
        ASSERT_EQ(logits.size(), sequence.logits.size());
        for (size_t i = 0; i < logits.size(); ++i) {
          ASSERT_NEAR(logits[i], sequence.logits[i], 1e-4 * sequence.logits_max_abs);
        }
      }
    }
  }
}

TEST_F(ConvertTest, ACopyOfEveryFamilyIsTheSameModelBitForBit) {
  for (const std::string& name : ModelsOfEveryFamily()) {
    SCOPED_TRACE(name);
    const Golden golden = tests::LoadGolden(name);
    fs::remove_all(target_);

    const ConvertResult result = Run(Spec(golden.dir));

    const auto before = engine::ModelDir::Open(golden.dir);
    const auto after = engine::ModelDir::Open(target_);
    ASSERT_EQ(after.tensor_names(), before.tensor_names());
    // Parts of a stack count one by one.
    const auto stored = static_cast<int64_t>(before.tensor_names().size());
    if (HasStacks(golden.dir)) {
      EXPECT_GT(result.tensors, stored);
    } else {
      EXPECT_EQ(result.tensors, stored);
    }
    for (const std::string& tensor : before.tensor_names()) {
      const engine::StoredTensor& was = *before.FindStored(tensor);
      const engine::StoredTensor& is = *after.FindStored(tensor);
      EXPECT_EQ(is.view.dtype, was.view.dtype) << tensor;
      EXPECT_EQ(is.view.shape, was.view.shape) << tensor;
      EXPECT_TRUE(std::ranges::equal(is.bytes(), was.bytes())) << tensor;
    }
    EXPECT_EQ(after.ReadText("config.json"), before.ReadText("config.json"));
    EXPECT_EQ(after.ReadText("generation_config.json"), before.ReadText("generation_config.json"));
    EXPECT_TRUE(result.merge_json.empty());
  }
}

TEST_F(ConvertTest, AnotherTypeIsRoundedOnceAndTheConfigSaysSo) {
  const Golden golden = tests::LoadGolden("mistral-tiny");  // f32
  ConvertSpec spec = Spec(golden.dir);
  spec.dtype = "bf16";

  EXPECT_EQ(Run(spec).dtype, "bf16");

  const auto before = engine::ModelDir::Open(golden.dir);
  const auto after = engine::ModelDir::Open(target_);
  const auto config = nlohmann::json::parse(*after.ReadText("config.json"));
  EXPECT_EQ(config.contains("dtype") ? config["dtype"] : config["torch_dtype"], "bfloat16");
  for (const std::string& tensor : before.tensor_names()) {
    const std::vector<float> was = engine::DecodeTensor(*before.FindStored(tensor));
    const std::vector<float> is = engine::DecodeTensor(*after.FindStored(tensor));
    for (size_t i = 0; i < was.size(); ++i) {
      ASSERT_EQ(is[i], engine::Bf16ToFloat(engine::FloatToBf16(was[i])));
    }
  }
  std::vector<std::vector<TokenId>> expected;
  for (const GoldenSequence& sequence : golden.sequences) expected.push_back(sequence.greedy_ids);
  EXPECT_EQ(GreedyOf(target_, golden, DType::kBF16), expected);
}

TEST_F(ConvertTest, ValuesThatTheTypeDoesNotHaveAreNamedAndNothingIsLeft) {
  const Golden golden = tests::LoadGolden("mistral-tiny");
  const fs::path model = dir_.path() / "model";
  fs::create_directory(model);
  fs::copy_file(golden.dir / "config.json", model / "config.json");
  const auto file = engine::SafetensorsFile::Open(golden.dir / "model.safetensors");
  std::vector<engine::NamedTensor> tensors;
  std::vector<float> large;
  for (const std::string& name : file.names()) {
    tensors.push_back({name, *file.Find(name)});
    if (name != "model.norm.weight") continue;
    large.assign(static_cast<size_t>(tensors.back().view.elements()), 1e5f);
    tensors.back().view.data = reinterpret_cast<const std::byte*>(large.data());
  }
  engine::WriteSafetensors(model / "model.safetensors", tensors, {});
  const size_t before = FilesBeside();
  ConvertSpec spec = Spec(model);
  spec.dtype = "f16";

  const auto fault = Fault(spec);

  EXPECT_EQ(fault->code(), ErrorCode::kDataLoss);
  EXPECT_NE(std::string(fault->what()).find("model.norm.weight"), std::string::npos);
  EXPECT_EQ(FilesBeside(), before);
}

// A walk over 2^60 rows, one by one or in pieces, would not end.
TEST_F(ConvertTest, AnEmptyTensorOfManyRowsCostsNothing) {
  const Golden golden = tests::LoadGolden("mistral-tiny");  // f32
  const fs::path model = dir_.path() / "empty";
  fs::create_directory(model);
  fs::copy_file(golden.dir / "config.json", model / "config.json");
  const engine::ModelDir before = engine::ModelDir::Open(golden.dir);
  std::vector<engine::NamedTensor> tensors = {
      {"empty", {nullptr, DType::kF32, {int64_t{1} << 60, 0}}}};
  for (const std::string& name : before.tensor_names()) {
    tensors.push_back({name, before.FindStored(name)->view});
  }
  engine::WriteSafetensors(model / "model.safetensors", tensors, {});
  ConvertSpec spec = ConversionTest::Spec(model, "hf");
  spec.dtype = "bf16";

  EXPECT_EQ(Run(spec).tensors, static_cast<int64_t>(tensors.size()));

  const engine::ModelDir after = engine::ModelDir::Open(spec.target);
  EXPECT_EQ(after.FindStored("empty")->view.shape, (std::vector<int64_t>{int64_t{1} << 60, 0}));
  EXPECT_TRUE(engine::DecodeTensor(*after.FindStored("empty")).empty());
}

TEST_F(ConvertTest, SwappedShapesAreRefusedWithoutACertificateToo) {
  const Golden golden = tests::LoadGolden("mistral-tiny");
  const fs::path model = dir_.path() / "swapped";
  fs::create_directory(model);
  fs::copy_file(golden.dir / "config.json", model / "config.json");
  const engine::ModelDir before = engine::ModelDir::Open(golden.dir);
  std::vector<engine::NamedTensor> tensors;
  for (const std::string& name : before.tensor_names()) {
    tensors.push_back({name, before.FindStored(name)->view});
    if (name == "model.layers.0.mlp.down_proj.weight") {
      std::reverse(tensors.back().view.shape.begin(), tensors.back().view.shape.end());
    }
  }
  engine::WriteSafetensors(model / "model.safetensors", tensors, {});
  for (const char* format : {"hf", "native-params", "gguf"}) {
    SCOPED_TRACE(format);
    ConvertSpec spec = ConversionTest::Spec(model, format, std::string("out") + format);
    if (spec.format == "gguf") spec.target += ".gguf";
    ExpectFault(spec, ErrorCode::kDataLoss,
                "tensor 'model.layers.0.mlp.down_proj.weight' has shape [");
    EXPECT_FALSE(fs::exists(spec.target));
  }
}

TEST_F(ConvertTest, WhatIsThereIsReplacedOnRequestAndOnlyIfItIsAModel) {
  const Golden golden = tests::LoadGolden("gemma2-tiny/lora");
  ConvertSpec copy = Spec(golden.dir);
  ConvertSpec merge = Spec(golden.adapter_dir, golden.dir);
  Run(copy);

  EXPECT_EQ(Fault(merge)->code(), ErrorCode::kAlreadyExists);
  EXPECT_FALSE(fs::exists(target_ / "merge.json"));
  merge.overwrite = true;
  Run(merge);

  EXPECT_TRUE(fs::exists(target_ / "merge.json"));
  EXPECT_EQ(FilesBeside(), 1U);
  copy.overwrite = true;
  Run(copy);
  EXPECT_FALSE(fs::exists(target_ / "merge.json"));
  EXPECT_EQ(FilesBeside(), 1U);
  fs::remove(target_ / "config.json");
  fs::remove(target_ / "convert.json");
  EXPECT_EQ(Fault(copy)->code(), ErrorCode::kAlreadyExists);
  // The source is never replaced.
  fs::copy(golden.dir, dir_.path() / "own", fs::copy_options::recursive);
  ConvertSpec onto_itself = Spec(dir_.path() / "own" / "lora", dir_.path() / "own");
  onto_itself.target = dir_.path() / "own";
  onto_itself.overwrite = true;
  EXPECT_EQ(Fault(onto_itself)->code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(fs::exists(dir_.path() / "own" / "lora"));
}

// Stopped at several points, with and without an existing target.
TEST_F(ConvertTest, StoppedItLeavesNothing) {
  const Golden golden = tests::LoadGolden("gemma2-tiny/lora");
  const ConvertSpec copy = Spec(golden.dir), merge = Spec(golden.adapter_dir, golden.dir);
  for (const ConvertSpec& spec : {copy, merge}) {
    for (const int64_t percent : {0, 40, 90, 100}) {
      if (percent == 100 && spec.base.empty()) continue;  // the merged model is being compared
      SCOPED_TRACE(percent);
      std::stop_source stop;
      JobContext context;
      context.stop = stop.get_token();
      context.report = [&](const ProgressEvent& event) {
        EXPECT_EQ(event.total_steps, 100);
        if (event.step >= percent) stop.request_stop();
      };

      EXPECT_EQ(Fault(spec, context)->code(), ErrorCode::kCancelled);

      EXPECT_EQ(FilesBeside(), 0U);
    }
  }
}

// Leftovers beside the target do not change the next conversion.
TEST_F(ConvertTest, AJobThatWasStoppedAnywhereGoesOn) {
  const Golden golden = tests::LoadGolden("gemma2-tiny/lora");
  const ConvertSpec copy = Spec(golden.dir), merge = Spec(golden.adapter_dir, golden.dir);
  for (const ConvertSpec& spec : {copy, merge}) {
    ConvertSpec whole = spec;
    whole.target = dir_.path() / "whole";
    Run(whole);
    const auto wanted = Contents(whole.target);
    fs::remove_all(whole.target);
    for (const int64_t percent : {0, 40, 90}) {
      SCOPED_TRACE(percent);
      std::stop_source stop;
      JobContext context;
      context.dir = "/jobs/job-1";
      context.stop = stop.get_token();
      context.report = [&](const ProgressEvent& event) {
        if (event.step >= percent) stop.request_stop();
      };
      EXPECT_EQ(Fault(spec, context)->code(), ErrorCode::kCancelled);
      EXPECT_FALSE(fs::exists(target_));
      EXPECT_EQ(FilesBeside(), 1U);
      context.stop = {};

      Run(spec, context);

      ExpectSameContents(Contents(target_), wanted);
      EXPECT_EQ(FilesBeside(), 1U);
      fs::remove_all(target_);
    }
  }
}

// A server killed between publishing and recording success starts the job again.
TEST_F(ConvertTest, AJobThatIsStartedAgainFindsItsTargetDone) {
  const Golden golden = tests::LoadGolden("gemma2-tiny/lora");
  JobContext context;
  context.dir = "/jobs/job-1";
  fs::create_directory(dir_.path() / "out.tmp-0123456789abcdef");  // left by a killed conversion
  const ConvertResult first = Run(Spec(golden.adapter_dir, golden.dir), context);
  const auto written = fs::last_write_time(target_ / "model.safetensors");
  EXPECT_EQ(FilesBeside(), 1U);

  const ConvertResult second = Run(Spec(golden.adapter_dir, golden.dir), context);

  EXPECT_EQ(fs::last_write_time(target_ / "model.safetensors"), written);
  EXPECT_EQ(second.bytes, first.bytes);
  EXPECT_EQ(second.tensors, first.tensors);
  EXPECT_EQ(second.merge_json, first.merge_json);
  context.dir = "/jobs/job-2";
  EXPECT_EQ(Fault(Spec(golden.adapter_dir, golden.dir), context)->code(),
            ErrorCode::kAlreadyExists);
}

TEST_F(ConvertTest, WhatIsNotServedIsRefusedByItsField) {
  const Golden golden = tests::LoadGolden("gemma2-tiny/lora");
  const auto expect = [&](const ConvertSpec& spec, ErrorCode code, const std::string& param,
                          const std::string& reason, const std::string& word) {
    const auto fault = Fault(spec);
    EXPECT_EQ(fault->code(), code);
    EXPECT_EQ(fault->param(), param);
    EXPECT_EQ(fault->reason(), reason);
    EXPECT_NE(std::string(fault->what()).find(word), std::string::npos) << fault->what();
  };
  ConvertSpec spec = Spec(golden.dir);
  spec.format = "tarball";
  expect(spec, ErrorCode::kInvalidArgument, "target.format", "unsupported_value", "hf");
  spec = Spec(golden.dir);
  spec.dtype = "q4_0";
  expect(spec, ErrorCode::kInvalidArgument, "target.dtype", "unsupported_value", "f32, bf16, f16");
  spec = Spec(golden.dir);
  spec.maxtext.model = "mixtral-8x7b";
  expect(spec, ErrorCode::kInvalidArgument, "target.maxtext_model", "invalid_value", "llama3-8b");
  expect(Spec(golden.adapter_dir), ErrorCode::kInvalidArgument, "source.base",
         "missing_required_parameter", "base");
  expect(Spec(golden.dir, golden.dir), ErrorCode::kInvalidArgument, "source.base", "invalid_value",
         "base must be left out");
  expect(Spec(golden.adapter_dir, golden.adapter_dir), ErrorCode::kInvalidArgument, "source.base",
         "invalid_value", "adapter itself");
  expect(Spec(dir_.path() / "nowhere"), ErrorCode::kNotFound, "source", "path_not_found",
         "nowhere");
  expect(Spec(golden.dir / "config.json"), ErrorCode::kUnsupported, "source", "unsupported_value",
         "one file of a model; give the directory");
  EXPECT_EQ(FilesBeside(), 0U);

  // A Flax checkpoint: a map whose first key is the string "params".
  engine::WriteFileAtomically(dir_.path() / "flax_model.msgpack", "\x81\xa6params\x80");
  expect(Spec(dir_.path() / "flax_model.msgpack"), ErrorCode::kUnsupported, "source",
         "unsupported_value", "Flax msgpack");
}

TEST(ConvertSpec, IsReadAsItIsWritten) {
  ConvertSpec spec;
  spec.source = "/a/\"b\"";
  spec.base = "/c";
  spec.dtype = "f32";
  spec.target = "/d";
  spec.overwrite = true;
  spec.verify = false;
  spec.certificate = false;
  spec.max_kl = 0.5;

  const ConvertSpec read = ParseConvertSpec(ConvertSpecJson(spec), "spec.json");

  EXPECT_EQ(read.source, spec.source);
  EXPECT_EQ(read.base, spec.base);
  EXPECT_EQ(read.format, "hf");
  EXPECT_EQ(read.dtype, "f32");
  EXPECT_EQ(read.target, spec.target);
  EXPECT_TRUE(read.overwrite);
  EXPECT_FALSE(read.verify);
  EXPECT_FALSE(read.certificate);
  EXPECT_EQ(read.max_kl, 0.5);
  EXPECT_THROW(ParseConvertSpec("{}", "spec.json"), Error);
  EXPECT_THROW(ParseConvertSpec("[]", "spec.json"), Error);
}

}  // namespace
}  // namespace tandem::convert
