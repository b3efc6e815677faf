// Adapters extracted from a tuned model and its base: their output, their error, and refusals.

#include "convert/formats/peft/peft.h"

#include <gtest/gtest.h>

#include <Eigen/SVD>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/adapter/lora_adapter.h"
#include "engine/formats/safetensors/safetensors.h"
#include "tests/convert/convert_fixture.h"
#include "tests/convert/families.h"
#include "tests/support/golden.h"
#include "tests/support/model_harness.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using engine::LoraAdapter;
using engine::LoraModule;
using Json = nlohmann::ordered_json;
using tests::Golden;
using tests::GoldenSequence;
using tests::ModelHarness;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

class PeftTest : public ConversionTest {
 protected:
  ConvertSpec Extracting(const fs::path& source, const fs::path& base, int64_t rank,
                         const std::string& name = "adapter") const {
    ConvertSpec spec = Spec(source, "peft", name);
    spec.base = base;
    spec.peft.rank = rank;
    return spec;
  }
  // Merges the adapter into its base, in f32.
  fs::path Merge(const fs::path& adapter, const fs::path& base, const std::string& name) {
    ConvertSpec spec = Spec(adapter, "hf", name);
    spec.base = base;
    spec.dtype = "f32";
    Run(spec);
    return spec.target;
  }
  static std::vector<float> Values(const fs::path& model, const std::string& tensor) {
    const auto files = engine::ModelDir::Open(model);
    return engine::DecodeTensor(*files.FindStored(tensor));
  }
  // Copies the model in f32 and changes its numbers.
  fs::path Tuned(const fs::path& base, const std::string& name,
                 const std::function<void(const std::string&, std::vector<float>&)>& tune) const {
    const auto files = engine::ModelDir::Open(base);
    std::vector<std::vector<float>> values;
    std::vector<engine::NamedTensor> tensors;
    for (const std::string& tensor : files.tensor_names()) {
      const engine::StoredTensor& stored = *files.FindStored(tensor);
      values.push_back(engine::DecodeTensor(stored));
      tune(tensor, values.back());
      tensors.push_back({tensor,
                         {reinterpret_cast<const std::byte*>(values.back().data()), DType::kF32,
                          stored.view.shape}});
    }
    const fs::path dir = dir_.path() / name;
    fs::create_directory(dir);
    engine::WriteSafetensors(dir / "model.safetensors", tensors, {{"format", "pt"}});
    fs::copy_file(base / "config.json", dir / "config.json");
    return dir;
  }
  static Matrix Floats(const engine::ConstTensorView& view) {
    Matrix matrix(view.shape[0], view.shape[1]);
    engine::ConvertToF32(view, {matrix.data(), static_cast<size_t>(matrix.size())});
    return matrix;
  }
  // The change of the module's weight, [out, in].
  static Matrix Change(const LoraModule& module, const std::string& tensor, const fs::path& tuned,
                       const fs::path& base) {
    const std::vector<float> is = Values(tuned, tensor), was = Values(base, tensor);
    const bool out_in = tensor.ends_with(".weight");
    const int64_t n = module.b.shape[0], k = module.a.shape[1];
    Matrix change(out_in ? n : k, out_in ? k : n);
    for (int64_t i = 0; i < change.size(); ++i) {
      change.data()[i] = is[static_cast<size_t>(i)] - was[static_cast<size_t>(i)];
    }
    if (out_in) return change;
    return change.transpose();
  }
  static Json Report(const fs::path& adapter) {
    return Json::parse(Text(adapter / "convert.json"))["peft"];
  }
  static const Json& Of(const Json& report, const std::string& tensor) {
    for (const Json& each : report["tensors"]) {
      if (each["name"] == tensor) return each;
    }
    throw std::runtime_error(tensor + " is not in the report");
  }
  // The weight's name in llama and gemma (.weight) or in miniGPT (.kernel).
  static std::string TensorOf(const fs::path& base, const std::string& module) {
    const auto files = engine::ModelDir::Open(base);
    for (const char* leaf : {".weight", ".kernel"}) {
      if (files.FindStored(module + leaf) != nullptr) return module + leaf;
    }
    throw std::runtime_error(module + " has no tensor");
  }
};

// |D - B A| / |D| of the best approximation: all but the first `rank` singular values dropped.
double BestError(const Matrix& change, int64_t rank) {
  const Eigen::VectorXd values =
      Eigen::JacobiSVD<Eigen::MatrixXd>(change.cast<double>()).singularValues();
  return values.tail(values.size() - rank).norm() / values.norm();
}

TEST_F(PeftTest, WhatWasMergedComesOutAgain) {
  for (const std::string& name : tests::AdapterGoldenNames()) {
    SCOPED_TRACE(name);
    const Golden golden = tests::LoadGolden(name);
    const std::string mark = golden.dir.filename().string();
    const fs::path tuned = Merge(golden.adapter_dir, golden.dir, "tuned-" + mark);
    const LoraAdapter given = LoraAdapter::Open(golden.adapter_dir);
    ConvertSpec spec = Extracting(tuned, golden.dir, given.rank(), "adapter-" + mark);
    spec.certificate = true;
    spec.max_kl = 1e-6;

    const ConvertResult result = Run(spec);

    EXPECT_EQ(result.format, "peft");
    EXPECT_EQ(result.dtype, "f32");
    const LoraAdapter made = LoraAdapter::Open(spec.target);
    EXPECT_EQ(made.rank(), given.rank());
    EXPECT_EQ(made.alpha(), static_cast<double>(given.rank()));
    EXPECT_EQ(made.modules().size(), given.modules().size());
    EXPECT_EQ(result.tensors, static_cast<int64_t>(2 * given.modules().size()));
    EXPECT_EQ(Json::parse(result.certificate_json)["state"], "measured");
    const Json report = Json::parse(ConvertResultJson(result))["peft"];
    EXPECT_EQ(report["modules"], given.modules().size());
    EXPECT_LT(report["relative_error"], 1e-5);
    EXPECT_LT(report["worst_relative_error"], 1e-5);
    EXPECT_EQ(report["not_expressed"]["tensors"], 0);
    EXPECT_FALSE(report.contains("tensors"));
    EXPECT_EQ(Report(spec.target)["tensors"].size(), given.modules().size());

    const fs::path again = Merge(spec.target, golden.dir, "again-" + mark);
    ModelHarness harness(again, {.dtype = DType::kF32});
    for (const GoldenSequence& sequence : golden.sequences) {
      const std::vector<float> logits = harness.Prefill(sequence.input_ids, 0);
      ASSERT_EQ(logits.size(), sequence.logits.size());
      for (size_t i = 0; i < logits.size(); ++i) {
        ASSERT_NEAR(logits[i], sequence.logits[i], 1e-4 * sequence.logits_max_abs);
      }
    }
  }
}

TEST_F(PeftTest, ASmallerRankLosesWhatTheOtherSingularValuesHave) {
  for (const std::string& name : tests::AdapterGoldenNames()) {
    SCOPED_TRACE(name);
    const Golden golden = tests::LoadGolden(name);
    const std::string mark = golden.dir.filename().string();
    const fs::path tuned = Merge(golden.adapter_dir, golden.dir, "tuned-" + mark);
    ConvertSpec spec = Extracting(tuned, golden.dir, 2, "adapter-" + mark);
    spec.peft.alpha = 5;

    Run(spec);

    const LoraAdapter made = LoraAdapter::Open(spec.target);
    EXPECT_EQ(made.alpha(), 5);
    const Json report = Report(spec.target);
    double error2 = 0, all2 = 0;
    for (const LoraModule& module : made.modules()) {
      SCOPED_TRACE(module.path);
      EXPECT_EQ(module.scale, 2.5F);
      const std::string tensor = TensorOf(golden.dir, module.path);
      const Matrix change = Change(module, tensor, tuned, golden.dir);
      const Matrix a = Floats(module.a), b = Floats(module.b);
      const double best = BestError(change, 2);
      EXPECT_GT(best, 0.01);
      EXPECT_NEAR((change - module.scale * (b * a)).norm() / change.norm(), best, 1e-4);
      EXPECT_NEAR(Of(report, tensor)["relative_error"].get<double>(), best, 1e-4);
      EXPECT_LE(Of(report, tensor)["relative_error"], report["worst_relative_error"]);
      // A and B share the singular values evenly.
      for (int64_t i = 0; i < 2; ++i) EXPECT_NEAR(a.row(i).norm() / b.col(i).norm(), 1, 1e-5);
      error2 += std::pow(best * change.norm(), 2);
      all2 += change.squaredNorm();
    }
    EXPECT_NEAR(report["relative_error"].get<double>(), std::sqrt(error2 / all2), 1e-4);
  }
}

// Every tensor changes a little, including norms and embeddings.
TEST_F(PeftTest, WhatAnAdapterCannotSayIsNamedAndCounted) {
  const Golden golden = tests::LoadGolden("gemma2-tiny");
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 0.01F);
  double linear2 = 0, other2 = 0;
  std::set<std::string> others;
  const fs::path tuned = Tuned(golden.dir, "tuned", [&](const std::string& name, auto& values) {
    const bool is_linear = name.find("_proj.") != std::string::npos;
    if (!is_linear) others.insert(name);
    for (float& value : values) {
      const float was = value;
      value += normal(random);
      const double change = value - was;
      (is_linear ? linear2 : other2) += change * change;
    }
  });
  std::vector<std::string> warnings;
  JobContext context;
  context.report = [&](const ProgressEvent& event) {
    if (event.kind == "warning") warnings.push_back(event.message);
  };

  Run(Extracting(tuned, golden.dir, 4), context);

  const Json report = Report(dir_.path() / "adapter");
  const LoraAdapter made = LoraAdapter::Open(dir_.path() / "adapter");
  EXPECT_EQ(report["not_expressed"]["tensors"], others.size());
  EXPECT_NEAR(report["not_expressed"]["share_of_change"].get<double>(),
              std::sqrt(other2 / (other2 + linear2)), 1e-6);
  EXPECT_EQ(report["tensors"].size(), others.size() + made.modules().size());
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("model.embed_tokens.weight"), std::string::npos) << warnings[0];
  EXPECT_EQ(report["warnings"][0], warnings[0]);
  for (const std::string& other : others) {
    EXPECT_EQ(Of(report, other)["module"], false) << other;
    EXPECT_EQ(Of(report, other)["relative_error"], 1) << other;
  }
  // Noise has nearly equal singular values, and yet the result is close to the best of that rank.
  for (const LoraModule& module : made.modules()) {
    const std::string tensor = module.path + ".weight";
    const double best = BestError(Change(module, tensor, tuned, golden.dir), 4);
    const double error = Of(report, tensor)["relative_error"];
    EXPECT_GE(error, best - 1e-5) << tensor;
    EXPECT_LE(error, best * 1.01) << tensor;
  }
}

TEST_F(PeftTest, AWeightThatDidNotChangeHasNoModule) {
  const Golden golden = tests::LoadGolden("llama3-tiny-rope-scaling");
  const std::string only = "model.layers.1.self_attn.o_proj";
  const fs::path tuned = Tuned(golden.dir, "tuned", [&](const std::string& name, auto& values) {
    if (name == only + ".weight") values[3] += 0.5F;
  });

  Run(Extracting(tuned, golden.dir, 2));

  const LoraAdapter made = LoraAdapter::Open(dir_.path() / "adapter");
  ASSERT_EQ(made.modules().size(), 1U);
  EXPECT_EQ(made.modules()[0].path, only);
  EXPECT_LT(Report(dir_.path() / "adapter")["relative_error"], 1e-6);
  const auto files = engine::ModelDir::Open(golden.dir);
  EXPECT_EQ(Report(dir_.path() / "adapter")["unchanged"], files.tensor_names().size() - 1);
}

// GPT-2's kernels are stored [in, out], and its names may have a module prefix.
TEST_F(PeftTest, AModelOfEveryFamilyAndKindOfSourceIsTakenApart) {
  for (const std::string& name : ModelsOfEveryFamily()) {
    SCOPED_TRACE(name);
    const Golden golden = tests::LoadGolden(name);
    const std::string mark = golden.name;
    const fs::path tuned = Tuned(golden.dir, "tuned-" + mark, [](const std::string&, auto& values) {
      const size_t n = values.size();
      for (size_t i = 0; i < n; ++i) values[i] += i % 7 == 0 ? 0.01F : 0;
    });
    ConvertSpec stacked = Spec(tuned, "native", "native-" + mark);
    Run(stacked);

    Run(Extracting(tuned, golden.dir, 2, "a-" + mark));
    Run(Extracting(stacked.target, golden.dir, 2, "b-" + mark));

    ExpectSameContents(Contents(dir_.path() / ("b-" + mark)),
                       Contents(dir_.path() / ("a-" + mark)));
    const auto base = engine::ModelDir::Open(golden.dir);
    const auto again =
        engine::ModelDir::Open(Merge(dir_.path() / ("a-" + mark), golden.dir, "again-" + mark));
    EXPECT_FALSE(again.tensor_names().empty());
  }
}

// A MaxText checkpoint with its own config, and one without: then the base lends its config.
TEST_F(PeftTest, ACheckpointOfMaxTextIsTakenApartAsItsModelIs) {
  const Golden golden = tests::LoadGolden("gemma2-tiny/lora");
  const fs::path tuned = Merge(golden.adapter_dir, golden.dir, "tuned");
  Run(Extracting(tuned, golden.dir, 4, "plain"));
  const auto plain = Contents(dir_.path() / "plain");
  for (const char* layout : {"scanned", "unscanned"}) {
    SCOPED_TRACE(layout);
    const std::string mark = layout;
    ConvertSpec there = Spec(tuned, "maxtext", "maxtext-" + mark);
    there.layout = layout;
    Run(there);

    ConvertSpec spec = Extracting(there.target, golden.dir, 4, "beside-" + mark);
    spec.certificate = true;
    spec.max_kl = 1e-6;  // forces a measurement
    const ConvertResult result = Run(spec);
    for (const char* file : {"config.json", "maxtext.json"}) fs::remove(there.target / file);
    Run(Extracting(there.target / "0" / "items", golden.dir, 4, "lent-" + mark));

    ExpectSameContents(Contents(dir_.path() / ("beside-" + mark)), plain);
    // Rounding to the base's bf16 would have lost part of the change.
    EXPECT_LT(Report(dir_.path() / ("lent-" + mark))["relative_error"], 1e-5);
    EXPECT_EQ(Report(dir_.path() / ("lent-" + mark))["not_expressed"]["tensors"], 0);
    EXPECT_EQ(Json::parse(result.certificate_json)["state"], "measured");
    EXPECT_EQ(Report(spec.target), Report(dir_.path() / "plain"));
  }
}

// F32 keeps every bit of both models. From blocks, the adapter is the difference of decoded values.
TEST_F(PeftTest, FilesOfGgufAreSourcesAndBases) {
  const Golden golden = tests::LoadGolden("gemma2-tiny/lora");
  const fs::path tuned = Merge(golden.adapter_dir, golden.dir, "tuned");
  const auto gguf = [&](const fs::path& model, const std::string& dtype, const std::string& name) {
    ConvertSpec spec = Spec(model, "gguf", name + ".gguf");
    spec.dtype = dtype;
    Run(spec);
    return spec.target;
  };
  const fs::path base_file = gguf(golden.dir, "bf16", "base");
  const fs::path tuned_file = gguf(tuned, "f32", "tuned-f32");
  ConvertSpec maxtext = Spec(tuned, "maxtext", "maxtext");
  Run(maxtext);
  fs::remove(maxtext.target / "config.json");
  Run(Extracting(tuned, golden.dir, 4, "plain"));
  ConvertSpec certified = Extracting(tuned_file, base_file, 4, "both-files");
  certified.certificate = true;
  certified.max_kl = 1e-6;

  Run(Extracting(tuned_file, golden.dir, 4, "file"));
  const ConvertResult result = Run(certified);
  Run(Extracting(tuned, base_file, 4, "base-file"));
  Run(Extracting(maxtext.target, base_file, 4, "file-lends"));

  const std::string weights = "adapter_model.safetensors";
  for (const char* name : {"file", "both-files", "base-file", "file-lends"}) {
    EXPECT_TRUE(Contents(dir_.path() / name)[weights] == Contents(dir_.path() / "plain")[weights])
        << name;
  }
  EXPECT_EQ(Json::parse(result.certificate_json)["state"], "measured");
  EXPECT_EQ(Json::parse(Text(certified.target / "adapter_config.json"))["base_model_name_or_path"],
            "base.gguf");

  const fs::path blocks = gguf(tuned, "q8_0", "tuned-q8_0");
  std::vector<std::string> warnings;
  JobContext context;
  context.report = [&](const ProgressEvent& event) {
    if (event.kind == "warning") warnings.push_back(event.message);
  };
  Run(Extracting(blocks, golden.dir, 8, "blocks"), context);
  const Json report = Report(dir_.path() / "blocks");
  const LoraAdapter made = LoraAdapter::Open(dir_.path() / "blocks");
  EXPECT_EQ(made.modules().size(), report["modules"]);
  for (const LoraModule& module : made.modules()) {
    const std::string tensor = module.path + ".weight";
    const Matrix change = Change(module, tensor, blocks, golden.dir);
    const Matrix error = change - module.scale * (Floats(module.b) * Floats(module.a));
    EXPECT_NEAR(Of(report, tensor)["relative_error"].get<double>(), error.norm() / change.norm(),
                1e-4);
  }
  ASSERT_GE(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("quantised"), std::string::npos) << warnings[0];
}

TEST_F(PeftTest, ThreadsChangeNoBit) {
  const Golden golden = tests::LoadGolden("gemma2-tiny/lora");
  const fs::path tuned = Merge(golden.adapter_dir, golden.dir, "tuned");
  Run(Extracting(tuned, golden.dir, 3, "two"));
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    engine::OpsContext ops(engine::Kernels(), pool);
    const std::string name = "threads" + std::to_string(threads);
    Convert(Extracting(tuned, golden.dir, 3, name), {}, ops);
    ExpectSameContents(Contents(dir_.path() / name), Contents(dir_.path() / "two"));
    EXPECT_EQ(Report(dir_.path() / name), Report(dir_.path() / "two"));
  }
}

TEST_F(PeftTest, IsRefusedWhereItWouldSayNothingOrSomethingElse) {
  const Golden golden = tests::LoadGolden("gemma2-tiny/lora");
  const fs::path tuned = Merge(golden.adapter_dir, golden.dir, "tuned");
  const auto expect = [&](const ConvertSpec& spec, const char* param, const std::string& word) {
    SCOPED_TRACE(word);
    const auto fault = Fault(spec);
    EXPECT_EQ(fault->code(), ErrorCode::kInvalidArgument) << fault->what();
    EXPECT_EQ(fault->param(), param) << fault->what();
    EXPECT_NE(std::string(fault->what()).find(word), std::string::npos) << fault->what();
    EXPECT_FALSE(fs::exists(spec.target));
    EXPECT_FALSE(fs::exists(spec.target.string() + ".part"));
  };
  const auto tuned_by = [&](const std::string& name, const std::string& tensor) {
    return Tuned(golden.dir, name, [&](const std::string& each, auto& values) {
      if (each == tensor) values[0] += 1;
    });
  };
  expect(Extracting(tuned, {}, 4), "source.base", "needs a base");
  expect(Extracting(tuned, golden.dir, 0), "target.rank", "in [1, 4096]");
  expect(Extracting(tuned, golden.dir, -1), "target.rank", "in [1, 4096]");
  expect(Extracting(tuned, golden.dir, 4097), "target.rank", "4096");
  expect(Extracting(tuned, golden.dir, 4096), "target.rank", "self_attn");
  expect(Extracting(golden.adapter_dir, golden.dir, 4), "source", "already an adapter");
  expect(Extracting(tuned, golden.adapter_dir, 4), "source.base", "adapter itself");
  expect(Extracting(golden.dir, golden.dir, 4), "source.base", "same weights");
  expect(Extracting(tuned_by("norm", "model.norm.weight"), golden.dir, 4), "source.base",
         "model.norm.weight");
  expect(Extracting(tests::LoadGolden("qwen3-tiny").dir, golden.dir, 4), "source.base", "families");
  // Another model of the same family is not the base.
  expect(Extracting(tests::LoadGolden("gemma2-tiny-query-scalar").dir, golden.dir, 4),
         "source.base", "model.");
  ConvertSpec maxtext = Spec(golden.dir, "maxtext", "maxtext");
  Run(maxtext);
  expect(Extracting(tuned, maxtext.target, 4), "source.base", "convert it");
  ConvertSpec spec = Extracting(tuned, golden.dir, 4);
  spec.peft.alpha = std::nan("");
  expect(spec, "target.alpha", "alpha");
  spec = Spec(tuned, "hf", "adapter");
  spec.peft.rank = 4;
  expect(spec, "target.rank", "peft");
  spec = Spec(tuned, "hf", "adapter");
  spec.base = golden.dir;
  expect(spec, "source.base", "base must be left out");

  const fs::path broken = Tuned(golden.dir, "broken", [&](const std::string& name, auto& values) {
    if (name == "model.layers.0.mlp.up_proj.weight") values[1] = std::nanf("");
  });
  ExpectFault(Extracting(broken, golden.dir, 4), ErrorCode::kDataLoss, "up_proj");
}

}  // namespace
}  // namespace tandem::convert
