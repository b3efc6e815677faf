// Direct preference optimisation, whole runs of a tiny model.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stop_token>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"
#include "training/plan/plan.h"
#include "training/run/evaluate.h"
#include "training/run/run.h"
#include "training/setup/data_view.h"
#include "training/setup/open_data.h"
#include "training/setup/run_parts.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

class DpoTest : public testing::Test {
 protected:
  DpoTest() {
    bench::RandomModelSpec model;
    model.config = bench::TinyModelConfig("gemma2");
    model.with_tokenizer = true;
    bench::WriteRandomModel(model, dir_ / "base");
    std::ofstream(dir_ / "chat.jinja") << kTemplate;
    WriteRows("train.jsonl", 0, 18);
    WriteRows("eval.jsonl", 100, 5);
  }

  void WriteRows(const char* name, int first, int n) const {
    std::ofstream rows(dir_ / name);
    for (int i = first; i < first + n; ++i) {
      rows << R"({"input":{"messages":[{"role":"user","content":"Number )" << i
           << R"(?"}]},"preferred_output":[{"role":"assistant","content":"A dog)"
           << std::string(static_cast<size_t>(i % 4), '!')
           << R"("}],"non_preferred_output":[{"role":"assistant","content":"It may be a cat"}]})"
           << "\n";
    }
  }

  TrainSpec Spec(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> words = {
        "load_parameters_path=" + (dir_ / "base").string(),
        "model.chat_template=" + (dir_ / "chat.jinja").string(),
        "data.train=" + (dir_ / "train.jsonl").string(),
    };
    words.insert(words.end(), overrides.begin(), overrides.end());
    return ParseTrainSpec(
        "kind: train.dpo\n"
        "data: {max_target_length: 64}\n"
        "train: {steps: 8, per_device_batch_size: 2, learning_rate: 2e-3}\n"
        "resources: {threads: 1}\n",
        "spec", words);
  }

  TrainOutcome Run(const TrainSpec& spec, const std::string& name, int64_t stop_after = -1) {
    std::stop_source stop;
    JobContext context;
    context.dir = dir_ / name;
    context.stop = stop.get_token();
    context.report = [&](const ProgressEvent& event) {
      events_.push_back(event);
      if (event.kind == std::string("step") && event.step == stop_after) stop.request_stop();
    };
    if (stop_after == kAtOnce) stop.request_stop();
    return RunTraining(spec, context);
  }
  static constexpr int64_t kAtOnce = -2;

  // One field by step; the last row of a step counts.
  std::map<int64_t, double> Metric(const std::string& name, const char* field) const {
    std::map<int64_t, double> values;
    std::ifstream file(dir_ / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains(field)) values[json["step"]] = json[field];
    }
    return values;
  }

  std::string Bytes(const fs::path& file) const {
    return engine::ReadWholeFile(dir_.path() / file, 1 << 28);
  }

  bool Heard(const std::string& part) const {
    for (const ProgressEvent& event : events_) {
      if (event.message.find(part) != std::string::npos) return true;
    }
    return false;
  }

  static std::string Fault(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  tests::TemporaryDir dir_;
  std::vector<ProgressEvent> events_;
};

TEST_F(DpoTest, BeginsAtLogTwoAndLearnsThePreferences) {
  Run(Spec({"steps=40", "data.eval=" + (dir_ / "eval.jsonl").string(), "eval_interval=20",
            "dpo.beta=0.5"}),
      "run");

  const auto losses = Metric("run", "learning/loss");
  ASSERT_EQ(losses.size(), 40u);
  EXPECT_DOUBLE_EQ(losses.at(0), std::log(2.0)) << "the model is its own reference, bit for bit";
  EXPECT_EQ(Metric("run", "rewards/margins").at(0), 0);
  EXPECT_EQ(Metric("run", "rewards/accuracies").at(0), 0);
  EXPECT_LT(losses.at(39), 0.1);
  EXPECT_EQ(Metric("run", "rewards/accuracies").at(39), 1);
  EXPECT_GT(Metric("run", "rewards/chosen").at(39), Metric("run", "rewards/rejected").at(39) + 1);
  EXPECT_NEAR(Metric("run", "rewards/margins").at(39),
              Metric("run", "rewards/chosen").at(39) - Metric("run", "rewards/rejected").at(39),
              1e-9);
  EXPECT_EQ(Metric("run", "eval/rewards/accuracies").at(40), 1);
  EXPECT_GT(Metric("run", "eval/rewards/margins").at(40),
            Metric("run", "eval/rewards/margins").at(20));
  EXPECT_LT(Metric("run", "eval/avg_loss").at(40), 0.2);
  EXPECT_TRUE(Metric("run", "learning/perplexity").empty()) << "this loss has none";
  EXPECT_TRUE(Heard("18 pairs of 18 rows (openai_preference)"));
  EXPECT_TRUE(fs::exists(dir_ / "run" / "hf" / "model.safetensors"));
}

TEST_F(DpoTest, FiguresAreInEverySink) {
  Run(Spec({"steps=2", "metrics.csv=true", "metrics.tensorboard=true"}), "run");

  const std::string csv = Bytes("run/metrics.csv");
  const std::string header = csv.substr(0, csv.find('\n'));
  std::string events;
  for (const auto& file : fs::directory_iterator(dir_ / "run" / "tensorboard")) {
    events += engine::ReadWholeFile(file.path(), 1 << 20);
  }
  for (const char* name : {"rewards/chosen", "rewards/rejected", "rewards/accuracies",
                           "rewards/margins", "logps/chosen", "logps/rejected"}) {
    EXPECT_EQ(Metric("run", name).size(), 2u) << name;
    EXPECT_NE(header.find(name), std::string::npos) << name;
    EXPECT_NE(events.find(name), std::string::npos) << name;
  }
}

// One pair a row, so that every division into micro-batches has the same pairs per step.
TEST_F(DpoTest, AccumulationIsTheBiggerBatch) {
  const std::vector<std::string> common = {"data.packing=none", "dtype=float32", "steps=6"};
  const auto run = [&](const char* name, int rows, int accumulated, int threads) {
    std::vector<std::string> words = common;
    words.push_back("per_device_batch_size=" + std::to_string(rows));
    words.push_back("gradient_accumulation_steps=" + std::to_string(accumulated));
    words.push_back("resources.threads=" + std::to_string(threads));
    Run(Spec(words), name);
    return Metric(name, "learning/loss");
  };
  const auto whole = run("whole", 4, 1, 1);
  const auto halves = run("halves", 2, 2, 1);
  const auto quarters = run("quarters", 1, 4, 1);

  for (const auto& [step, loss] : whole) {
    EXPECT_NEAR(halves.at(step), loss, 1e-6) << step;
    EXPECT_NEAR(quarters.at(step), loss, 1e-6) << step;
  }
  EXPECT_NE(whole.at(5), whole.at(0));
}

TEST_F(DpoTest, ThreadsAndRecomputationChangeNoBit) {
  Run(Spec({"steps=4"}), "one");
  Run(Spec({"steps=4", "resources.threads=3"}), "three");
  Run(Spec({"steps=4", "train.remat=full"}), "remat");

  for (const char* name : {"three", "remat"}) {
    EXPECT_EQ(Metric(name, "learning/loss"), Metric("one", "learning/loss")) << name;
    EXPECT_EQ(Bytes(fs::path(name) / "hf/model.safetensors"), Bytes("one/hf/model.safetensors"));
    EXPECT_EQ(Bytes(fs::path(name) / "reference/train"), Bytes("one/reference/train")) << name;
  }
}

TEST_F(DpoTest, PackingChangesNoReference) {
  Run(Spec({"steps=1"}), "packed");
  Run(Spec({"steps=1", "data.packing=none", "per_device_batch_size=1"}), "alone");

  EXPECT_EQ(Bytes("packed/reference/train"), Bytes("alone/reference/train"));
}

TEST_F(DpoTest, AStoppedRunGoesOnBitwiseAndTheReferenceStays) {
  const std::vector<std::string> words = {"data.eval=" + (dir_ / "eval.jsonl").string(),
                                          "eval_interval=3"};
  const TrainSpec spec = Spec(words);
  Run(spec, "whole");
  EXPECT_EQ(Run(spec, "parts", 4).status, TrainOutcome::Status::kStopped);
  const std::string train = Bytes("parts/reference/train");
  const std::string eval = Bytes("parts/reference/eval");
  events_.clear();
  Run(spec, "parts");

  EXPECT_FALSE(Heard("with the initial weights")) << "it was there";
  EXPECT_EQ(Bytes("parts/reference/train"), train);
  EXPECT_EQ(Bytes("parts/reference/eval"), eval);
  for (const char* field : {"learning/loss", "rewards/margins", "eval/avg_loss"}) {
    EXPECT_EQ(Metric("parts", field), Metric("whole", field)) << field;
  }
  EXPECT_EQ(Bytes("parts/hf/model.safetensors"), Bytes("whole/hf/model.safetensors"));
}

// A lost or damaged reference is computed again from the initial weights, never from trained ones.
TEST_F(DpoTest, TheReferenceIsNeverOfTrainedWeights) {
  const TrainSpec spec = Spec({"learning_rate=1e-2"});
  Run(spec, "whole");
  for (const bool lost : {true, false}) {
    const std::string name = lost ? "lost" : "damaged";
    Run(spec, name, 4);
    const fs::path file = dir_ / name / "reference" / "train";
    const std::string before = Bytes(fs::path(name) / "reference" / "train");
    if (lost) {
      fs::remove(file);
    } else {
      std::string broken = before;
      broken.back() ^= 1;
      std::ofstream(file, std::ios::binary) << broken;
    }
    Run(spec, name);

    EXPECT_EQ(Bytes(fs::path(name) / "reference" / "train"), before) << name;
    EXPECT_EQ(Metric(name, "learning/loss"), Metric("whole", "learning/loss")) << name;
    EXPECT_EQ(Bytes(fs::path(name) / "hf/model.safetensors"), Bytes("whole/hf/model.safetensors"));
  }
  EXPECT_TRUE(Heard("is damaged"));
}

TEST_F(DpoTest, ARunThatIsStoppedBeforeItsReferenceGoesOnBitwise) {
  Run(Spec(), "whole");
  EXPECT_EQ(Run(Spec(), "parts", kAtOnce).status, TrainOutcome::Status::kStopped);
  EXPECT_FALSE(fs::exists(dir_ / "parts" / "reference" / "train"));
  Run(Spec(), "parts");

  EXPECT_EQ(Metric("parts", "learning/loss"), Metric("whole", "learning/loss"));
  EXPECT_EQ(Bytes("parts/hf/model.safetensors"), Bytes("whole/hf/model.safetensors"));
}

TEST_F(DpoTest, OtherPairsAreARenewedReferenceAndOtherWeightsARefusal) {
  const auto longer = Spec({"steps=10", "resume_on_changed_data=continue"});
  Run(Spec({"steps=4"}), "run");
  WriteRows("train.jsonl", 7, 20);
  events_.clear();
  Run(longer, "run");
  EXPECT_TRUE(Heard("the pairs have changed"));

  bench::RandomModelSpec model;
  model.config = bench::TinyModelConfig("gemma2");
  model.with_tokenizer = true;
  model.seed = 77;
  fs::remove_all(dir_ / "base");
  bench::WriteRandomModel(model, dir_ / "base");
  EXPECT_NE(Fault([&] { Run(Spec({"steps=12"}), "run"); }).find("started with different weights"),
            std::string::npos);
}

TEST_F(DpoTest, AdaptersBesideEveryBaseBeginAtLogTwo) {
  for (const char* base : {"auto", "int8", "int4"}) {
    const std::string name = std::string("lora-") + base;
    Run(Spec({"steps=25", "lora.rank=4", "learning_rate=2e-2", "dpo.beta=0.5",
              std::string("lora.base_dtype=") + base}),
        name);

    const auto losses = Metric(name, "learning/loss");
    EXPECT_DOUBLE_EQ(losses.at(0), std::log(2.0)) << name;
    EXPECT_LT(losses.at(24), 0.3) << name;
    EXPECT_TRUE(fs::exists(dir_ / name / "adapter" / "adapter_model.safetensors"));
  }
  // Continues an adapter: the reference includes it.
  Run(Spec({"steps=3", "lora.load_path=" + (dir_ / "lora-auto" / "adapter").string()}), "further");
  EXPECT_DOUBLE_EQ(Metric("further", "learning/loss").at(0), std::log(2.0));
  EXPECT_NE(Bytes("further/reference/train"), Bytes("lora-auto/reference/train"));
}

TEST_F(DpoTest, DropoutIsOffForTheReference) {
  Run(Spec({"steps=2", "lora.rank=4"}), "plain");
  Run(Spec({"steps=2", "lora.rank=4", "lora.dropout=0.5"}), "dropped");

  EXPECT_EQ(Bytes("dropped/reference/train"), Bytes("plain/reference/train"));
}

TEST_F(DpoTest, OnlyAnswersCountAndPairsShareARow) {
  Run(Spec({"steps=1", "data.packing=none", "per_device_batch_size=1", "data.shuffle=false"}),
      "run");

  // "A dog" and "It may be a cat", each with its end-of-turn token.
  EXPECT_EQ(Metric("run", "learning/total_weights").at(0), 6 + 16);
  EXPECT_EQ(Metric("run", "perf/per_device_tokens").at(0), 2 * 64);
}

TEST_F(DpoTest, LongPairsAreTreatedAsOne) {
  std::ofstream(dir_ / "train.jsonl", std::ios::app)
      << R"({"input":{"messages":[{"role":"user","content":"Q"}]},)"
      << R"("preferred_output":[{"role":"assistant","content":"A dog"}],)"
      << R"("non_preferred_output":[{"role":"assistant","content":")" << std::string(80, 'x')
      << R"("}]})"
      << "\n";
  const auto size = [&](const std::vector<std::string>& words) {
    const TrainSpec spec = Spec(words);
    ThreadPool pool(1);
    const ModelFiles files = LoadModelFiles(spec);
    return OpenData(spec, files, pool).source->size();
  };

  EXPECT_EQ(size({}), 19);
  EXPECT_EQ(size({"data.overflow=drop"}), 18);
  EXPECT_NE(Fault([&] { size({"data.overflow=error"}); }).find("line 19: has"), std::string::npos);
  Run(Spec({"steps=2"}), "cut");
  EXPECT_TRUE(Heard("1 longer than a row"));
}

TEST_F(DpoTest, BadRowsEndTheRunBeforeItsFirstStep) {
  std::ofstream(dir_ / "train.jsonl", std::ios::app) << "{\"input\": 1}\n";

  EXPECT_NE(Fault([&] { Run(Spec(), "run"); }).find("line 19: 'input' must be an object"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(dir_ / "run" / "metrics.jsonl"));
  EXPECT_FALSE(fs::exists(dir_ / "run" / "reference"));
  Run(Spec({"steps=1", "data.on_bad_row=skip"}), "skipping");
  EXPECT_TRUE(Heard("1 bad rows skipped"));
}

TEST_F(DpoTest, PairsAreShownWithBothAnswers) {
  const auto shown = [&](const std::vector<std::string>& words) {
    const TrainSpec spec = Spec(words);
    ThreadPool pool(1);
    const ModelFiles files = LoadModelFiles(spec);
    const OpenedData data = OpenData(spec, files, pool);
    return MarkedText(*files.tokenizer, data.source->Make(0), {"[[", "]]"});
  };
  std::ofstream(dir_ / "texts.jsonl")
      << R"({"chosen":"Q: Two and two?\nA: four","rejected":"Q: Two and two?\nA: five"})"
      << "\n";

  EXPECT_EQ(shown({}),
            "chosen:\n<user>Number 0?<|endoftext|><assistant>[[A dog<|endoftext|>]]\n"
            "rejected:\n<user>Number 0?<|endoftext|><assistant>[[It may be a cat<|endoftext|>]]");
  EXPECT_EQ(shown({"data.train=" + (dir_ / "texts.jsonl").string(),
                   "train_data_columns=['chosen', 'rejected']"}),
            "chosen:\nQ: Two and two?\nA:[[ four<|endoftext|>]]\n"
            "rejected:\nQ: Two and two?\nA:[[ five<|endoftext|>]]");
  EXPECT_TRUE(shown({"dpo.max_prompt_length=11"})
                  .starts_with("chosen:\n<assistant>[[A dog<|endoftext|>]]\nrejected:\n<assis"));
}

TEST_F(DpoTest, StatisticsCountPairs) {
  std::ofstream(dir_ / "train.jsonl", std::ios::app) << Bytes("train.jsonl");
  ThreadPool pool(1);
  const TrainSpec spec = Spec();
  const ModelFiles files = LoadModelFiles(spec);
  OpenDataOptions options;
  options.keep_lengths = true;
  const std::string text = Statistics(spec, OpenData(spec, files, pool, options), "rows");

  EXPECT_NE(text.find("pairs                                  36\n"), std::string::npos) << text;
  EXPECT_NE(text.find("duplicates                             18\n"), std::string::npos) << text;
}

TEST_F(DpoTest, PreparedFilesAndPlainEvaluationAreRefused) {
  ThreadPool pool(1);
  const TrainSpec spec = Spec();
  EXPECT_NE(Fault([&] {
              PrepareData(spec, LoadModelFiles(spec), pool, DataSplit::kTrain, dir_ / "x.tok");
            }).find("cannot be prepared"),
            std::string::npos);
  EXPECT_NE(Fault([&] { EvaluateModel(spec, {}, {}); }).find("does not support train.dpo"),
            std::string::npos);
}

TEST_F(DpoTest, IpoAndOrpoLearnThePreferencesAndResumeBitwise) {
  for (const char* algo : {"ipo", "orpo"}) {
    const std::string name = algo;
    const TrainSpec spec = Spec({"steps=30", "dpo.algo=" + name, "dpo.orpo_lambda=1"});
    Run(spec, name);
    const auto losses = Metric(name, "learning/loss");
    EXPECT_LT(losses.at(29), losses.at(0)) << name;
    EXPECT_GT(Metric(name, "rewards/margins").at(29), Metric(name, "rewards/margins").at(0));
    // ORPO has no reference; IPO begins at d = 0.
    EXPECT_EQ(fs::exists(dir_ / name / "reference"), name == "ipo");
    if (name == "ipo") {
      EXPECT_NEAR(losses.at(0), 25, 1e-9);  // (1 / (2 beta))^2
    }
    Run(spec, name + "-parts", 11);
    Run(spec, name + "-parts");
    EXPECT_EQ(Metric(name + "-parts", "learning/loss"), losses);
  }
}

TEST_F(DpoTest, MaxTextsWordsMeanTheSame) {
  const TrainSpec spec = ParseTrainSpec(
      "use_dpo: true\nuse_sft: false\nsteps: 2\nload_parameters_path: m\ntrain_files: t.jsonl\n"
      "train_data_columns: ['chosen', 'rejected']\npacking: false\nmax_target_length: 512\n"
      "dpo: {algo: dpo, orpo_lambda: 0.1, dpo_label_smoothing: 0.1, dpo_beta: 0.2, "
      "max_prompt_length: null}\n",
      "spec", {});

  EXPECT_EQ(spec.kind, "train.dpo");
  EXPECT_EQ(spec.dpo.loss.beta, 0.2);
  EXPECT_EQ(spec.dpo.loss.label_smoothing, 0.1);
  EXPECT_EQ(spec.dpo.max_prompt_length, 0);
  EXPECT_EQ(spec.data.packing, Packing::kNone);
  EXPECT_EQ(ParseTrainSpec("use_sft: true\nuse_dpo: false\nsteps: 1\nload_parameters_path: m\n"
                           "data.train: t\n",
                           "spec", {})
                .kind,
            "train.sft");
  EXPECT_EQ(Spec({"kind=dpo"}).kind, "train.dpo");
}

TEST_F(DpoTest, WhatCannotBeIsRefusedWithTheSpec) {
  const auto fault = [&](const std::string& word) { return Fault([&] { Spec({word}); }); };

  EXPECT_NE(fault("dpo.algo=kto").find("must be one of dpo, sigmoid, ipo, orpo"),
            std::string::npos);
  for (const char* word : {"dpo.beta=0", "dpo.beta=-1", "dpo.beta=1e9", "dpo.label_smoothing=0.5",
                           "dpo.label_smoothing=-0.1", "dpo.max_prompt_length=-1"}) {
    EXPECT_NE(fault(word).find("must be"), std::string::npos) << word;
  }
  EXPECT_NE(fault("dpo.max_prompt_length=64").find("must be less than data.max_target_length"),
            std::string::npos);
  EXPECT_NE(fault("data.packing=concat_then_split").find("cuts pairs apart"), std::string::npos);
  EXPECT_NE(fault("data.overflow=split").find("must not be split"), std::string::npos);
  EXPECT_NE(fault("data.turns=apart").find("data.turns"), std::string::npos);
  EXPECT_NE(fault("data.format=messages").find("must be auto, preference"), std::string::npos);
  EXPECT_NE(fault("sft_train_on_completion_only=false").find("compares answers only"),
            std::string::npos);
  EXPECT_NE(Fault([&] {
              Spec({"kind=train.sft", "data.format=preference"});
            }).find("need kind train.dpo"),
            std::string::npos);
  EXPECT_EQ(Spec({"kind=train.sft", "dpo.beta=0.2"}).notes.size(), 1u);
  EXPECT_NE(Fault([&] { Run(Spec({"kind=train.sft"}), "sft"); }).find("need kind train.dpo"),
            std::string::npos);
}

TEST_F(DpoTest, ThePlanCountsBothAnswersTheHeadTwiceAndTheReference) {
  const TrainSpec spec = Spec({"steps=10", "per_device_batch_size=3"});
  const TrainingPlan pairs = PlanTraining(spec, {});
  const TrainingPlan rows =
      PlanTraining(Spec({"kind=train.sft", "steps=10", "per_device_batch_size=6"}), {});

  EXPECT_EQ(pairs.step_flops, rows.step_flops);
  const Program& program = pairs.memory.program;
  const Node& head = program.nodes.back();
  EXPECT_EQ(pairs.step_recomputed_flops,
            static_cast<double>(Describe(head.op).forward_flops(program, head)));
  EXPECT_EQ(rows.step_recomputed_flops, 0);
  EXPECT_EQ(pairs.reference_flops, 10 * static_cast<double>(program.forward_flops()));
  EXPECT_EQ(pairs.memory.total_bytes() - rows.memory.total_bytes(), 2 * 4 * 6 * 64);
  EXPECT_EQ(nlohmann::json::parse(PlanJson(pairs))["reference_flops"], pairs.reference_flops);

  JobContext context;
  const RunParts parts(spec, context);
  EXPECT_EQ(parts.trainer.program().arena_bytes, program.arena_bytes);
}

}  // namespace
}  // namespace tandem::training
