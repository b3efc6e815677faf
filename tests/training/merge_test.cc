// Adapter runs that export a merged model.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "tests/support/model_harness.h"
#include "tests/support/random_gguf.h"
#include "tests/support/temporary_dir.h"
#include "training/run/run.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kSmallAdapter = {"lora.rank=1", "lora.module_path=q_proj"};

class MergedRunTest : public testing::Test {
 protected:
  MergedRunTest() {
    bench::RandomModelSpec model;
    model.config = bench::TinyModelConfig("gemma2");
    model.with_tokenizer = true;
    bench::WriteRandomModel(model, dir_ / "base");
    std::ofstream text(dir_ / "train.txt");
    for (int i = 0; i < 20; ++i) text << "the dog ran home\n<|endoftext|>\n";
  }

  TrainOutcome Run(const std::vector<std::string>& overrides) {
    std::vector<std::string> words = {
        "model.load_parameters_path=" + (dir_ / "base").string(),
        "data.train=" + (dir_ / "train.txt").string(),
        "lora.export=merged",
    };
    words.insert(words.end(), overrides.begin(), overrides.end());
    JobContext context;
    context.dir = dir_ / "job";
    context.report = [&](const ProgressEvent& event) { said_ += event.message + "\n"; };
    return RunTraining(ParseTrainSpec("data: {max_target_length: 32}\n"
                                      "train: {steps: 6, per_device_batch_size: 1}\n"
                                      "train.learning_rate: 3e-2\n"
                                      "resources: {threads: 1}\n",
                                      "spec", words),
                       context);
  }

  // Runs with enough space for the adapter and checkpoints, not for the model.
  void ExpectNoSpaceForTheModel(std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), kSmallAdapter.begin(), kSmallAdapter.end());
    signal(SIGXFSZ, SIG_IGN);
    rlimit old{};
    getrlimit(RLIMIT_FSIZE, &old);
    const auto model = fs::file_size(dir_ / "base" / "model.safetensors");
    const rlimit small{model - 1, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    try {
      Run(overrides);
      ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_NE(std::string(error.what()).find("model.safetensors"), std::string::npos)
          << error.what();
    }
    setrlimit(RLIMIT_FSIZE, &old);
  }

  // The largest difference of logits over a few tokens, and the largest logit.
  std::pair<float, float> Differ(const fs::path& merged, const fs::path& adapter) {
    const std::vector<TokenId> ids = {5, 17, 200, 31, 8, 99, 120};
    tests::ModelHarness beside(dir_ / "base", {.dtype = engine::DType::kBF16});
    beside.UseAdapter(beside.LoadAdapter(adapter));
    tests::ModelHarness inside(merged, {});
    const auto a = beside.Prefill(ids, 0), b = inside.Prefill(ids, 0);
    float difference = 0, largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      difference = std::max(difference, std::fabs(a[i] - b[i]));
      largest = std::max(largest, std::fabs(a[i]));
    }
    return {difference, largest};
  }

  static std::string Text(const fs::path& path) { return engine::ReadWholeFile(path, 64 << 20); }

  tests::TemporaryDir dir_;
  std::string said_;
};

TEST_F(MergedRunTest, LeavesAdapterAndModelThatServeTheSame) {
  const TrainOutcome outcome = Run({});

  EXPECT_EQ(outcome.adapter_dir, dir_ / "job" / "adapter");
  EXPECT_EQ(outcome.model_dir, dir_ / "job" / "hf");
  ASSERT_TRUE(outcome.merged);
  EXPECT_EQ(outcome.merged->dtype, "bf16");
  EXPECT_GT(outcome.merged->moved_by_adapter, outcome.merged->max_abs_difference);
  const auto [difference, largest] = Differ(outcome.model_dir, outcome.adapter_dir);
  EXPECT_LE(difference, engine::MergeBound(engine::DType::kBF16) * largest);
  for (const char* file : {"config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "merge.json"}) {
    EXPECT_TRUE(fs::exists(outcome.model_dir / file)) << file;
  }
  EXPECT_NE(said_.find("merged model exported to"), std::string::npos);

  // The export of a second run replaces it and leaves nothing else behind.
  const auto n_entries =
      std::distance(fs::directory_iterator(dir_ / "job"), fs::directory_iterator());
  Run({"checkpoint.resume=false", "train.learning_rate=1e-2"});
  const auto again = Differ(outcome.model_dir, outcome.adapter_dir);
  EXPECT_LE(again.first, engine::MergeBound(engine::DType::kBF16) * again.second);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ / "job"), fs::directory_iterator()),
            n_entries);
}

// An adapter trained on a quantised base is merged into the original weights.
TEST_F(MergedRunTest, ABaseHeldInIntegersIsMergedAsItsFileHasIt) {
  const TrainOutcome outcome = Run({"lora.base_dtype=int4"});

  const auto [difference, largest] = Differ(outcome.model_dir, outcome.adapter_dir);
  EXPECT_LE(difference, engine::MergeBound(engine::DType::kBF16) * largest);
  EXPECT_EQ(nlohmann::json::parse(Text(outcome.model_dir / "config.json"))["torch_dtype"],
            "bfloat16");
}

TEST_F(MergedRunTest, AFileOfBlocksIsRefusedBeforeTheFirstStep) {
  const fs::path blocks = tests::WriteRandomGguf(engine::Encoding::kQ8_0, dir_.path());
  try {
    Run({"model.load_parameters_path=" + blocks.string(),
         "model.tokenizer_path=" + (dir_ / "base").string()});
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("Q8_0"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(fs::exists(dir_ / "job" / "checkpoints"));
}

TEST_F(MergedRunTest, AFullDiskIsTheRunsErrorAndTheAdapterStays) {
  ExpectNoSpaceForTheModel({});

  EXPECT_TRUE(fs::exists(dir_ / "job" / "adapter" / "adapter_model.safetensors"));
  EXPECT_FALSE(fs::exists(dir_ / "job" / "hf"));
}

TEST_F(MergedRunTest, AModelThatCannotBeWrittenLeavesTheEarlierOneInPlace) {
  Run(kSmallAdapter);
  const std::string before = Text(dir_ / "job" / "hf" / "model.safetensors");

  ExpectNoSpaceForTheModel({"checkpoint.resume=false", "train.learning_rate=1e-2"});

  EXPECT_EQ(Text(dir_ / "job" / "hf" / "model.safetensors"), before);
}

}  // namespace
}  // namespace tandem::training
