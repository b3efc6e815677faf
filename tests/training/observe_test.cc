// The output files of a run, and `tandem eval` of its model.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "engine/base/error.h"
#include "tests/training/tiny_run.h"
#include "training/observe/metrics.h"
#include "training/run/evaluate.h"
#include "training/run/profile.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

class ObservedRun : public TinyRunTest {
 protected:
  TrainSpec Spec(const std::vector<std::string>& overrides = {}) const {
    const std::string base = (dir_.path() / "base").string();
    const std::string text = (dir_.path() / "train.txt").string();
    std::vector<std::string> words = {"model.tokenizer_path=" + base, "data.train=" + text,
                                      "data.eval=" + text};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return ParseTrainSpec(
        "model: {n_layers: 2, hidden_dim: 32, n_heads: 2, n_kv_heads: 1}\n"
        "data: {max_target_length: 64, eos_token: \"<|endoftext|>\"}\n"
        "train: {steps: 12, per_device_batch_size: 2, learning_rate: 3e-3, eval_interval: 4}\n"
        "metrics: {csv: true, tensorboard: true}\n"
        "resources: {threads: 1}\n",
        "spec", words);
  }

  std::vector<nlohmann::json> Rows(const char* name) const {
    std::vector<nlohmann::json> rows;
    for (auto& row : Metrics()) {
      if (row.contains(name)) rows.push_back(std::move(row));
    }
    return rows;
  }
};

TEST_F(ObservedRun, EveryStepHasItsFigures) {
  Run(Spec());

  const auto steps = Rows("learning/loss");
  ASSERT_EQ(steps.size(), 12u);
  for (const auto& row : steps) {
    EXPECT_GT(row["perf/mfu"], 0);
    EXPECT_GT(row["perf/goodput"], 0);
    EXPECT_LE(row["perf/goodput"], 1);
    EXPECT_GE(row["perf/step_time_seconds"], row["perf/data_wait_seconds"]);
    EXPECT_EQ(row["perf/per_device_tokens"], 128);
    EXPECT_GE(row["learning/accuracy"], 0);
    EXPECT_LE(row["learning/accuracy"], 1);
  }
  EXPECT_GT(steps.back()["learning/accuracy"], steps.front()["learning/accuracy"]);
  const auto evaluations = Rows("eval/avg_loss");
  ASSERT_EQ(evaluations.size(), 3u);
  for (const auto& row : evaluations) {
    EXPECT_NEAR(row["eval/avg_perplexity"], std::exp(row["eval/avg_loss"].get<double>()), 1e-6);
    EXPECT_GE(row["eval/accuracy"], 0);
    EXPECT_LE(row["eval/accuracy"], 1);
  }
  EXPECT_GT(evaluations[2]["eval/accuracy"], evaluations[0]["eval/accuracy"]);
  EXPECT_FALSE(Rows("checkpoint/seconds").empty());
}

// A name missing from the list would be only in metrics.jsonl.
TEST_F(ObservedRun, EveryFigureOfARunHasItsColumn) {
  Run(Spec());
  const std::set<std::string> known(kMetricNames.begin(), kMetricNames.end());
  for (const auto& row : Metrics()) {
    for (const auto& [name, value] : row.items()) {
      if (name == "step" || name == "unix_seconds") continue;
      EXPECT_TRUE(known.contains(name)) << name;
    }
  }
}

// With a learning rate of zero, a step and an evaluation use the same weights.
TEST_F(ObservedRun, AccuracyOfAStepIsThatOfAnEvaluationOfItsTokens) {
  Run(Spec({"steps=1", "data.shuffle=false", "gradient_accumulation_steps=2", "eval_steps=2",
            "eval_interval=1", "train.schedule.warmup_steps=1"}));
  const auto steps = Rows("learning/loss");
  const auto evaluations = Rows("eval/avg_loss");
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0]["learning/current_learning_rate"], 0);
  EXPECT_EQ(steps[0]["learning/total_weights"], evaluations[0]["eval/total_weights"]);
  EXPECT_EQ(steps[0]["learning/accuracy"], evaluations[0]["eval/accuracy"]);
}

TEST_F(ObservedRun, AStopLosesAndRepeatsNothing) {
  RunUntil(Spec(), "run", 5);
  EXPECT_TRUE(fs::exists(dir_.path() / "run" / "loss.svg"));
  Run(Spec());
  for (const auto& row : Rows("learning/loss")) EXPECT_TRUE(row.contains("learning/accuracy"));

  const auto cells_of = [](const std::string& line) {
    std::vector<std::string> cells;
    std::istringstream rest(line);
    for (std::string cell; std::getline(rest, cell, ',');) cells.push_back(cell);
    cells.resize(std::max<size_t>(cells.size(), 64));  // empty cells at the end
    return cells;
  };
  std::ifstream csv(dir_.path() / "run" / "metrics.csv");
  std::string line;
  std::getline(csv, line);
  const auto names = cells_of(line);
  const auto column = [&](const char* name) {
    return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  std::vector<std::string> steps;
  std::vector<std::string> evaluations;
  while (std::getline(csv, line)) {
    const auto cells = cells_of(line);
    if (!cells[column("learning/loss")].empty()) steps.push_back(cells[0]);
    if (!cells[column("eval/avg_loss")].empty()) evaluations.push_back(cells[0]);
  }
  EXPECT_EQ(steps, (std::vector<std::string>{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10",
                                             "11"}));
  EXPECT_EQ(evaluations, (std::vector<std::string>{"4", "8", "12"}));
  EXPECT_EQ(Rows("learning/loss").size(), 12u);
}

TEST_F(ObservedRun, TheRoofIsMeasuredOnce) {
  Run(Spec({"steps=1"}));
  const fs::path path = dir_.path() / "run" / "roof.json";
  auto roof = nlohmann::json::parse(engine::ReadWholeFile(path, 1 << 20));
  EXPECT_GT(roof["flops"], 1e8);
  roof["flops"] = 1e9;
  std::ofstream(path) << roof.dump();
  Run(Spec({"steps=2"}));
  EXPECT_EQ(nlohmann::json::parse(engine::ReadWholeFile(path, 1 << 20))["flops"], 1e9);
  const auto last = Rows("perf/mfu").back();
  EXPECT_NEAR(last["perf/mfu"], last["perf/per_device_tflops_per_sec"].get<double>() * 1000,
              1e-9 * last["perf/mfu"].get<double>());
}

TEST_F(ObservedRun, EvaluationOfTheExportIsTheRunsOwn) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    fs::remove_all(dir_.path() / "run");
    const TrainSpec spec = Spec({std::string("dtype=") + dtype});
    const TrainOutcome outcome = Run(spec);
    TrainSpec exported = spec;
    exported.model = {};
    exported.model.load_parameters_path = outcome.model_dir;
    const Evaluation evaluation = EvaluateModel(exported, {}, {});
    EXPECT_EQ(evaluation.loss, outcome.best_eval_loss) << dtype;
    const auto rows = Rows("eval/avg_loss");
    EXPECT_EQ(evaluation.accuracy, rows.back()["eval/accuracy"].get<double>());
    EXPECT_EQ(evaluation.tokens, rows.back()["eval/total_weights"].get<int64_t>());
  }
}

TEST_F(ObservedRun, AnAdapterIsEvaluatedOnItsBase) {
  const std::string base = "model.load_parameters_path=" + (dir_.path() / "base").string();
  const TrainSpec spec = Spec({base, "lora.rank=4", "learning_rate=1e-2"});
  const TrainOutcome outcome = Run(spec);
  const Evaluation with = EvaluateModel(spec, outcome.adapter_dir, {});
  const Evaluation without = EvaluateModel(spec, {}, {});
  EXPECT_EQ(with.loss, outcome.best_eval_loss);
  EXPECT_LT(with.loss, without.loss);
}

TEST_F(ObservedRun, ATraceHasTheWindowsSteps) {
  Run(Spec({"profiler=xplane", "skip_first_n_steps_for_profiler=2", "profiler_steps=3",
            "train.steps=8", "checkpoint.period=3"}));
  const fs::path dir = dir_.path() / "run" / "profile";
  const auto trace = nlohmann::json::parse(engine::ReadWholeFile(dir / "trace.json", 1 << 26));
  std::set<std::string> names;
  for (const auto& event : trace.at("traceEvents")) names.insert(event.at("name"));
  for (const char* name : {"step 2", "step 4", "data", "checkpoint", "linear forward",
                           "linear backward", "cross_entropy", "optimizer", "repack"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_FALSE(names.contains("step 1"));
  EXPECT_FALSE(names.contains("step 5"));
  const std::string summary = engine::ReadWholeFile(dir / "summary.txt", 1 << 20);
  EXPECT_TRUE(summary.starts_with("3 steps, ")) << summary;
}

TEST_F(ObservedRun, AProfileMeasuresEveryValueOfASweep) {
  EXPECT_EQ(SweepWords("a=1,2"), (std::vector<std::string>{"a=1", "a=2"}));
  EXPECT_THROW(SweepWords("a"), Error);
  EXPECT_THROW(SweepWords("a="), Error);
  for (const std::string& word : SweepWords("per_device_batch_size=1,4")) {
    const ProfileRow row = ProfileSpec(Spec({word}), {.warmup = 1, .steps = 3}, {});
    EXPECT_GT(row.step_seconds, 0);
    EXPECT_GT(row.mfu, 0);
    EXPECT_NEAR(row.tokens_per_second * row.step_seconds, word.back() == '1' ? 64 : 256, 1e-6);
    EXPECT_GT(row.predicted_bytes, 0);
  }
  // A given roof is used.
  const ProfileRow row = ProfileSpec(Spec(), {.warmup = 0, .steps = 1, .roof_flops = 1e9}, {});
  EXPECT_EQ(row.roof_flops, 1e9);
  EXPECT_NEAR(row.mfu, row.tflops * 1e3, 1e-9 * row.mfu);
  EXPECT_FALSE(fs::exists(dir_.path() / "run"));
  EXPECT_THROW(ProfileSpec(Spec({"num_epoch=1"}), {.warmup = 0, .steps = 100}, {}), Error);
}

TEST_F(ObservedRun, ATextWithoutTokensIsNoEvaluation) {
  std::ofstream(dir_.path() / "empty.txt") << "\n";
  TrainSpec spec = Spec();
  spec.model = {};
  spec.model.load_parameters_path = dir_.path() / "base";
  spec.data.eval = dir_.path() / "empty.txt";
  EXPECT_THROW(EvaluateModel(spec, {}, {}), Error);
}

}  // namespace
}  // namespace tandem::training
