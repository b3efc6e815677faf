// Runs with NaN, spikes, full disks and earlier checkpoints; accumulation; optimisers other than
// f32 AdamW.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "tests/training/tiny_run.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

class RunGuardsTest : public TinyRunTest {
 protected:
  RunGuardsTest() : TinyRunTest(UntiedLlama()) { WriteText("train.txt", {}); }

  static bench::RandomModelSpec UntiedLlama() {
    bench::RandomModelSpec model = TinyLlama();
    model.config.tied_embeddings = false;
    return model;
  }

  // Writes samples in order; these contain the poison.
  void WriteText(const std::string& name, const std::vector<int>& poisoned) const {
    std::ofstream text(dir_.path() / name);
    for (int i = 0; i < 60; ++i) {
      const bool bad = std::find(poisoned.begin(), poisoned.end(), i) != poisoned.end();
      text << "The " << (i % 2 != 0 ? "dog" : "cat") << " number " << i << " ran"
           << (bad ? "~" : "") << " to the river and back.\n<|endoftext|>\n";
    }
  }

  // Each row is one sample; a step takes two rows.
  TrainSpec Spec(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> words = {
        "load_parameters_path=" + (dir_.path() / "base").string(),
        "data.train=" + (dir_.path() / "train.txt").string(),
    };
    words.insert(words.end(), overrides.begin(), overrides.end());
    // The last word for a key counts.
    std::map<std::string, std::string> last;
    for (const std::string& word : words) last[word.substr(0, word.find('='))] = word;
    words.clear();
    for (const auto& [key, word] : last) words.push_back(word);
    return ParseTrainSpec(
        "data: {max_target_length: 64, eos_token: \"<|endoftext|>\", packing: none, "
        "shuffle: false}\n"
        "train: {steps: 12, per_device_batch_size: 2, learning_rate: 3e-3}\n"
        "precision: {compute: f32}\nresources: {threads: 1}\n",
        "spec", words);
  }
};

TEST_F(RunGuardsTest, ANumberThatIsNoneEndsTheRun) {
  WriteText("train.txt", {11});
  try {
    Run(Spec({Poisoned()}), "run");
    ADD_FAILURE() << "went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
    EXPECT_NE(std::string(error.what()).find("at step 5"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("train.on_nan"), std::string::npos);
  }
}

TEST_F(RunGuardsTest, ANumberThatIsNoneCanBeLeftOut) {
  WriteText("train.txt", {11, 16});
  const TrainOutcome outcome = Run(Spec({Poisoned(), "abort_on_nan_loss=false"}), "run");

  EXPECT_EQ(outcome.step, 12);
  EXPECT_EQ(CountEvents("warning", "the step is skipped"), 2);
  const auto losses = Losses("run");
  EXPECT_EQ(losses.size(), 10u);
  // A skipped step still has a row, which every reader of JSON and CSV accepts.
  for (const auto& line : Metrics("run")) {
    if (!line.contains("learning/loss") || (line["step"] != 5 && line["step"] != 8)) continue;
    EXPECT_EQ(line["learning/skipped"], true);
    EXPECT_TRUE(line["learning/loss"].is_null()) << line;
    EXPECT_GT(line["learning/current_learning_rate"], 0);
    EXPECT_GT(line["perf/step_time_seconds"], 0);
  }
  EXPECT_FALSE(losses.contains(5));
  EXPECT_FALSE(losses.contains(8));
  for (const auto& [step, loss] : losses) EXPECT_TRUE(std::isfinite(loss)) << step;
}

TEST_F(RunGuardsTest, ARollbackGoesToTheLastCheckpointAndBehindTheData) {
  WriteText("train.txt", {11});
  const TrainOutcome outcome =
      Run(Spec({Poisoned(), "train.on_nan=rollback", "checkpoint_period=4"}), "run");

  EXPECT_EQ(outcome.step, 12);
  EXPECT_EQ(CountEvents("warning", "rollback 1 of at most 3 to step 4"), 1);
  // Step 4 runs twice: with samples 8 and 9, then with 12 and 13, which follow the bad one.
  std::vector<double> of_step_4;
  for (const auto& line : Metrics("run")) {
    if (line.contains("learning/loss") && line["step"] == 4) {
      of_step_4.push_back(line["learning/loss"]);
    }
  }
  ASSERT_EQ(of_step_4.size(), 2u);
  EXPECT_NE(of_step_4[0], of_step_4[1]);
  for (const auto& [step, loss] : Losses("run")) EXPECT_TRUE(std::isfinite(loss)) << step;
}

TEST_F(RunGuardsTest, ARollbackWithoutCheckpointsGoesToTheBeginning) {
  WriteText("train.txt", {3});
  Run(Spec({Poisoned(), "train.on_nan=rollback"}), "run");

  EXPECT_EQ(CountEvents("warning", "rollback 1 of at most 3 to step 0"), 1);
}

TEST_F(RunGuardsTest, RollbacksAreBounded) {
  WriteText("train.txt", {3, 5, 7});
  try {
    Run(Spec({Poisoned(), "train.on_nan=rollback", "train.max_rollbacks=2"}), "run");
    ADD_FAILURE() << "went on";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("after 2 rollbacks"), std::string::npos);
  }
  EXPECT_EQ(CountEvents("warning", ": rollback "), 2);
}

TEST_F(RunGuardsTest, ARunStoppedAfterARollbackGoesOnBitwise) {
  WriteText("train.txt", {11});
  const TrainSpec spec =
      Spec({Poisoned(), "train.on_nan=rollback", "checkpoint_period=4", "checkpoint.keep=9"});
  Run(spec, "whole");
  bool rolled_back = false;
  EXPECT_THROW(Run(spec, "parts",
                   [&](const ProgressEvent& event) {
                     rolled_back =
                         rolled_back || event.message.find("rollback") != std::string::npos;
                     // As if killed: nothing is saved.
                     if (rolled_back && event.kind == "step") throw std::runtime_error("killed");
                   }),
               std::runtime_error);
  events_.clear();

  Run(spec, "parts");

  EXPECT_EQ(CountEvents("message", "resumed after step 4"), 1);
  EXPECT_EQ(CountEvents("warning", "rollback"), 0) << "the bad data is met once";
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
}

TEST_F(RunGuardsTest, SpikesAreLeftOutAndTheirWindowIsResumed) {
  // With no allowed deviation, nearly every step is a spike.
  const TrainSpec spec = Spec({"skip_step_on_spikes=true", "skip_step_interval=6",
                               "skip_step_scaling_factor=0.1", "steps=20"});
  Run(spec, "whole");
  const int spikes = CountEvents("warning", "spike: loss ");
  EXPECT_GT(spikes, 0);
  int left_out = 0;
  for (const auto& line : Metrics("whole")) {
    if (line.contains("learning/updated")) left_out += line["learning/updated"] ? 0 : 1;
  }
  EXPECT_EQ(left_out, spikes);
  events_.clear();
  RunUntil(spec, "parts", 9);
  Run(spec, "parts");

  EXPECT_EQ(CountEvents("warning", "spike: loss "), spikes);
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
}

TEST_F(RunGuardsTest, CheckpointsOfAnEarlierRunArePutAside) {
  Run(Spec({"steps=8", "checkpoint_period=4"}), "run");
  events_.clear();
  const TrainOutcome outcome =
      Run(Spec({"steps=4", "learning_rate=1e-4", "checkpoint.resume=false"}), "run");

  EXPECT_EQ(CountEvents("warning", "checkpoints of an earlier run are now in "), 1);
  EXPECT_EQ(outcome.checkpoint.filename(), "000000000004");
  events_.clear();
  Run(Spec({"steps=5", "learning_rate=1e-4"}), "run");
  EXPECT_EQ(CountEvents("message", "resumed after step 4"), 1) << "not the earlier run's 8";
}

TEST_F(RunGuardsTest, SavesBesideTrainingAreThoseThatItWaitsFor) {
  const auto run = [&](const char* async, const std::string& name) {
    Run(Spec(
            {"checkpoint_period=3", "checkpoint.keep=9", std::string("checkpoint.async=") + async}),
        name);
  };
  run("true", "beside");
  run("false", "waiting");

  EXPECT_EQ(CountEvents("checkpoint", "beside"), 4);
  EXPECT_EQ(CountEvents("checkpoint", "waiting"), 4);
  for (const char* step : {"000000000003", "000000000006", "000000000009", "000000000012"}) {
    for (const char* file : {"model.safetensors", "optim.safetensors", "train_state.json"}) {
      const auto read = [&](const char* name) {
        return engine::ReadWholeFile(dir_.path() / name / "checkpoints" / step / file, 1 << 28);
      };
      EXPECT_EQ(read("beside"), read("waiting")) << step << " " << file;
    }
  }
}

// Two micro-batches of two rows equal one of four.
TEST_F(RunGuardsTest, AccumulationIsTheLargerBatch) {
  for (const char* packing : {"none", "best_fit"}) {
    const std::string pack = std::string("data.packing=") + packing;
    const auto run = [&](const char* rows, const char* times) {
      const std::string name = std::string(packing) + rows + "x" + times;
      Run(Spec({pack, std::string("per_device_batch_size=") + rows, "data.shuffle=true", "steps=6",
                std::string("gradient_accumulation_steps=") + times}),
          name);
      return Metrics(name);
    };
    const auto whole = run("4", "1");
    for (const auto& parts : {run("2", "2"), run("1", "4")}) {
      for (size_t i = 0; i < 6; ++i) {
        // Equal samples have equal numbers of trained tokens …
        EXPECT_EQ(parts[i]["learning/total_weights"], whole[i]["learning/total_weights"]) << i;
        const double loss = whole[i]["learning/loss"];
        EXPECT_NEAR(parts[i]["learning/loss"].get<double>(), loss, 1e-6 * loss) << i;
        const double norm = whole[i]["learning/raw_grad_norm"];
        EXPECT_NEAR(parts[i]["learning/raw_grad_norm"].get<double>(), norm, 1e-5 * norm) << i;
      }
    }
  }
}

TEST_F(RunGuardsTest, MomentsInEightBitsLearnAsFloatsDo) {
  const auto run = [&](const char* state) {
    const std::string name = std::string("run-") + state;
    Run(Spec({"steps=150", std::string("train.optimizer.state=") + state}), name);
    double sum = 0;
    const auto losses = Losses(name);
    for (int64_t step = 130; step < 150; ++step) sum += losses.at(step);
    return sum / 20;
  };
  const double f32 = run("f32");
  const double eight = run("8bit");

  EXPECT_NE(f32, eight) << "some matrix of this model is large enough for codes";
  EXPECT_NEAR(eight / f32, 1, 0.01);
}

TEST_F(RunGuardsTest, AnotherOptimizerDoesNotGoOn) {
  Run(Spec({"steps=2"}), "run");

  EXPECT_THROW(Run(Spec({"steps=4", "train.optimizer.state=8bit"}), "run"), Error);
}

TEST_F(RunGuardsTest, EveryOptimizerLearnsAndGoesOnBitwise) {
  const std::vector<std::vector<std::string>> cases = {
      {"opt_type=sgd", "learning_rate=0.5"},
      {"opt_type=sgd", "train.optimizer.momentum=0.9", "learning_rate=0.1"},
      {"opt_type=sgd", "train.optimizer.momentum=0.9", "train.optimizer.state=8bit",
       "learning_rate=0.1"},
      {"opt_type=adam"},
      {"opt_type=adamw", "train.optimizer.state=8bit"},
      {"opt_type=adamw", "train.optimizer.state=8bit", "dtype=bf16"}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string tag = std::to_string(i);
    std::vector<std::string> words = cases[i];
    words.push_back("steps=16");
    const TrainSpec spec = Spec(words);
    Run(spec, "whole" + tag);
    RunUntil(spec, "parts" + tag, 7);
    Run(spec, "parts" + tag);

    const auto losses = Losses("whole" + tag);
    EXPECT_LT(losses.at(15), losses.at(0) - 0.3) << tag;
    EXPECT_EQ(Losses("parts" + tag), losses) << tag;
    EXPECT_EQ(Weights("parts" + tag), Weights("whole" + tag)) << tag;
  }
}

}  // namespace
}  // namespace tandem::training
