// Training on models from other programs' files.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/adapter/lora_adapter.h"
#include "engine/base/error.h"
#include "engine/formats/model_dir.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_dir.h"
#include "training/run/run.h"
#include "training/setup/model_files.h"
#include "training/step/parameters.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

class ForeignBase : public testing::Test {
 protected:
  // Writes a golden model as GGUF, with a small vocabulary.
  fs::path Write(const char* golden, engine::Encoding matrices) {
    const fs::path file = dir_.path() / (std::string(golden) + ".gguf");
    tests::ConvertToGguf(tests::LoadGolden(golden).dir,
                         {.matrices = matrices, .with_vocabulary = true})
        .Write(file);
    std::ofstream text(dir_.path() / "train.txt");
    for (int i = 0; i < 40; ++i) text << "ab a b ab ab a\n";
    return file;
  }
  TrainSpec Spec(const fs::path& base, const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> words = {"model.load_parameters_path=" + base.string(),
                                      "data.train=" + (dir_.path() / "train.txt").string()};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return ParseTrainSpec(
        "data: {max_target_length: 32}\n"
        "train: {steps: 2, per_device_batch_size: 1, learning_rate: 1e-3}\n"
        "resources: {threads: 1}\n",
        "spec", words);
  }

  tests::TemporaryDir dir_;
};

TEST_F(ForeignBase, MastersAreThoseOfTheDirectoryItWasConvertedFrom) {
  for (const char* name : {"gpt2-tiny", "llama3-tiny-rope-scaling"}) {
    SCOPED_TRACE(name);
    const fs::path file = Write(name, engine::Encoding::kPlain);
    const ModelFiles files = LoadModelFiles(Spec(file));
    const auto specs = files.family->list_weights(files.config);
    const std::vector<bool> all(specs.size(), true);
    ParameterStore from_file(specs, engine::DType::kF32, all);
    ParameterStore from_dir(specs, engine::DType::kF32, all);

    from_file.LoadFrom(engine::ModelDir::Open(file));
    from_dir.LoadFrom(engine::ModelDir::Open(tests::LoadGolden(name).dir));

    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(from_file.Master(i), from_dir.Master(i)) << specs[i].name;
    }
  }
}

TEST_F(ForeignBase, TrainsAndLeavesADirectoryWithItsTokenizer) {
  const fs::path base = Write("qwen2-tiny", engine::Encoding::kPlain);
  JobContext context;
  context.dir = dir_.path() / "job";

  RunTraining(Spec(base), context);

  const engine::ModelDir model = engine::ModelDir::Open(context.dir / "hf");
  EXPECT_NE(model.FindTensor("model.layers.1.self_attn.q_proj.bias"), nullptr);
  EXPECT_TRUE(model.ReadText("tokenizer.model").has_value());
  const auto config = nlohmann::json::parse(*model.ReadText("config.json"));
  EXPECT_EQ(config["architectures"][0], "Qwen2ForCausalLM");
}

TEST_F(ForeignBase, InBlocksOfIntegersIsRefusedWithWhatToDo) {
  // This golden model has rows of 32, so its weights can be quantised.
  const fs::path base = Write("gemma2-tiny-query-scalar", engine::Encoding::kQ8_0);
  JobContext context;
  context.dir = dir_.path() / "job";
  try {
    RunTraining(Spec(base), context);
    ADD_FAILURE() << "trained";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << message;
    for (const char* part : {"Q8_0", "cannot be trained", "train from the F32, F16 or BF16 file"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
}

TEST_F(ForeignBase, AnAdapterIsTrainedBesideBlocksOfIntegers) {
  JobContext context;
  context.dir = dir_.path() / "job";
  std::vector<std::string> messages;
  context.report = [&](const ProgressEvent& event) { messages.push_back(event.message); };

  const TrainOutcome outcome = RunTraining(
      Spec(Write("gemma2-tiny-query-scalar", engine::Encoding::kQ8_0), {"lora.rank=2"}), context);

  EXPECT_TRUE(std::any_of(messages.begin(), messages.end(), [](const std::string& message) {
    return message.find("parameters in gguf-int8") != std::string::npos;
  }));
  const auto adapter = engine::LoraAdapter::Open(outcome.adapter_dir);
  EXPECT_EQ(adapter.origin().weights, "gguf-int8");
}

TEST_F(ForeignBase, AnAdapterIsTrainedBesideAFileOfPlainWeights) {
  JobContext context;
  context.dir = dir_.path() / "job";

  const TrainOutcome outcome =
      RunTraining(Spec(Write("qwen2-tiny", engine::Encoding::kPlain), {"lora.rank=2"}), context);

  EXPECT_TRUE(fs::exists(outcome.adapter_dir / "adapter_model.safetensors"));
}

}  // namespace
}  // namespace tandem::training
