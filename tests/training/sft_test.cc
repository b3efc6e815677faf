// Supervised fine-tuning from rows: whole runs of a tiny model.

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
#include "training/run/run.h"
#include "training/setup/data_view.h"
#include "training/setup/open_data.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

class SftTest : public testing::Test {
 protected:
  SftTest() {
    bench::RandomModelSpec model;
    model.config = bench::TinyModelConfig("gemma2");
    model.with_tokenizer = true;
    bench::WriteRandomModel(model, dir_ / "base");
    std::ofstream(dir_ / "chat.jinja") << kTemplate;
    std::ofstream rows(dir_ / "train.jsonl");
    for (int i = 0; i < 30; ++i) {
      const std::string animal = i % 2 != 0 ? "dog" : "cat";
      rows << R"({"messages":[{"role":"user","content":"Who is number )" << i
           << R"(?"},{"role":"assistant","content":"A )" << animal
           << R"(."},{"role":"user","content":"Sure?"},{"role":"assistant","content":"Yes, a )"
           << animal << R"(."}]})"
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
        "kind: train.sft\n"
        "data: {max_target_length: 128}\n"
        "train: {steps: 12, per_device_batch_size: 2, learning_rate: 3e-3}\n"
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
    return RunTraining(spec, context);
  }

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

  std::string Weights(const std::string& name) const {
    return engine::ReadWholeFile(dir_ / name / "hf" / "model.safetensors", 1 << 28);
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

  // A sample of a spec as `tandem data show` prints it.
  static std::string Shown(const TrainSpec& spec, int64_t i) {
    ThreadPool pool(1);
    const ModelFiles files = LoadModelFiles(spec);
    const OpenedData data = OpenData(spec, files, pool);
    return MarkedText(*files.tokenizer, data.source->Make(i), {"[[", "]]"});
  }

  tests::TemporaryDir dir_;
  std::vector<ProgressEvent> events_;
};

TEST_F(SftTest, WhatBecomesOfLongRowsIsAWarning) {
  std::ofstream(dir_ / "train.jsonl", std::ios::app)
      << R"({"messages":[{"role":"user","content":")" << std::string(400, 'x')
      << R"("},{"role":"assistant","content":"A dog."}]})"
      << "\n";
  const std::pair<const char*, const char*> fates[] = {
      {"truncate_left", "truncated to their ends"},
      {"drop", "skipped"},
      {"split", "split"},
      {"truncate",
       "truncated to their beginnings (data.overflow); skipped 1 without a trained token"}};
  for (const auto& [overflow, fate] : fates) {
    events_.clear();
    Run(Spec({"steps=1", std::string("data.overflow=") + overflow}), overflow);
    std::vector<std::string> warnings;
    for (const ProgressEvent& event : events_) {
      if (event.kind == std::string("warning")) warnings.push_back(event.message);
    }
    ASSERT_EQ(warnings.size(), 1u) << overflow;
    EXPECT_TRUE(
        warnings[0].starts_with(std::string("1 of 31 rows longer than 128 tokens: ") + fate))
        << warnings[0];
  }
}

TEST_F(SftTest, TheLossOfAnswersFalls) {
  Run(Spec({"steps=40"}), "run");

  const auto losses = Metric("run", "learning/loss");
  ASSERT_EQ(losses.size(), 40u);
  EXPECT_LT(losses.at(39), losses.at(0) - 1);
  EXPECT_TRUE(Heard("30 samples of 30 rows (messages)"));
}

TEST_F(SftTest, OnlyAnswersCount) {
  Run(Spec({"steps=1", "data.packing=none", "per_device_batch_size=1"}), "answers");
  Run(Spec({"steps=1", "data.packing=none", "per_device_batch_size=1",
            "sft_train_on_completion_only=false"}),
      "everything");

  // "A cat." and "Yes, a cat.", each with its end-of-turn token.
  EXPECT_EQ(Metric("answers", "learning/total_weights").at(0), 7 + 12);
  EXPECT_GT(Metric("everything", "learning/total_weights").at(0), 60);
}

TEST_F(SftTest, AStoppedRunGoesOnBitwise) {
  for (const char* packing : {"best_fit", "none"}) {
    const std::string tag = packing;
    const TrainSpec spec = Spec({"data.packing=" + tag, "data.turns=apart"});
    Run(spec, "whole-" + tag);
    EXPECT_EQ(Run(spec, "parts-" + tag, 4).status, TrainOutcome::Status::kStopped);
    Run(spec, "parts-" + tag);

    EXPECT_EQ(Metric("parts-" + tag, "learning/loss"), Metric("whole-" + tag, "learning/loss"));
    EXPECT_EQ(Weights("parts-" + tag), Weights("whole-" + tag));
  }
}

TEST_F(SftTest, APreparedFileTrainsTheSame) {
  const TrainSpec spec = Spec();
  const fs::path tok = dir_ / "train.tok";
  ThreadPool pool(2);
  PrepareData(spec, LoadModelFiles(spec), pool, DataSplit::kTrain, tok);
  Run(spec, "rows");
  Run(Spec({"data.train=" + tok.string()}), "prepared");

  EXPECT_EQ(Metric("prepared", "learning/loss"), Metric("rows", "learning/loss"));
  EXPECT_EQ(Weights("prepared"), Weights("rows"));
  const auto fault = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"data.train=" + tok.string()};
    all.insert(all.end(), words.begin(), words.end());
    return Fault([&] { Run(Spec(all), "other"); });
  };
  EXPECT_NE(fault({"data.turns=apart"}).find("turns '0', now '1'"), std::string::npos);
  std::ofstream(dir_ / "other.jinja") << kTemplate << " ";
  EXPECT_NE(fault({"model.chat_template=" + (dir_ / "other.jinja").string()})
                .find("a different chat template"),
            std::string::npos);
}

TEST_F(SftTest, BadRowsEndTheRunBeforeItsFirstStep) {
  std::ofstream(dir_ / "train.jsonl", std::ios::app) << "{\"messages\": 1}\n";

  EXPECT_NE(Fault([&] { Run(Spec(), "run"); }).find("line 31: messages must be a list"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(dir_ / "run" / "metrics.jsonl"));
  Run(Spec({"steps=1", "data.on_bad_row=skip"}), "skipping");
  EXPECT_TRUE(Heard("1 bad rows skipped"));
}

TEST_F(SftTest, RowsAreCheckedOnceAsLongAsNothingChanges) {
  const auto heard_after = [&](const std::vector<std::string>& words) {
    events_.clear();
    Run(Spec(words), "run");
    return Heard("unchanged since an earlier check");
  };
  EXPECT_FALSE(heard_after({"steps=1"}));
  EXPECT_TRUE(heard_after({"steps=2"}));
  EXPECT_FALSE(heard_after({"steps=3", "max_target_length=64", "checkpoint.resume=false"}));

  std::ofstream(dir_ / "train.jsonl", std::ios::app)
      << R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})"
      << "\n";
  EXPECT_FALSE(heard_after({"steps=4", "max_target_length=64", "checkpoint.resume=false"}));
  EXPECT_TRUE(Heard("31 samples of 31 rows"));
  // A broken record is ignored.
  std::ofstream(dir_ / "run/checked-rows.json") << "{\"key\": 1";
  EXPECT_FALSE(heard_after({"steps=5", "max_target_length=64"}));
  EXPECT_TRUE(heard_after({"steps=6", "max_target_length=64"}));
}

TEST_F(SftTest, ADirectoryOfShardsIsOneDataSet) {
  fs::create_directories(dir_ / "set/data");
  const std::string rows = engine::ReadWholeFile(dir_ / "train.jsonl", 1 << 20);
  const size_t cut = rows.find('\n', rows.size() / 2) + 1;
  std::ofstream(dir_ / "set/data/train_sft-00000-of-00002.jsonl") << rows.substr(0, cut);
  std::ofstream(dir_ / "set/data/train_sft-00001-of-00002.jsonl") << rows.substr(cut);
  std::ofstream(dir_ / "set/data/test_sft-00000-of-00001.jsonl") << rows.substr(cut);
  const std::string set = "hf_path=" + (dir_ / "set").string();
  const auto spec = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"model.chat_template=" + (dir_ / "chat.jinja").string(),
                                    "load_parameters_path=" + (dir_ / "base").string(), set};
    all.insert(all.end(), words.begin(), words.end());
    return ParseTrainSpec(
        "kind: train.sft\nsteps: 3\nmax_target_length: 128\n"
        "per_device_batch_size: 2\nresources: {threads: 1}\n",
        "spec", all);
  };
  Run(spec({"train_split=train_sft", "hf_eval_split=test_sft"}), "shards");
  Run(Spec({"steps=3", "learning_rate=3e-4"}), "file");

  EXPECT_EQ(Metric("shards", "learning/loss"), Metric("file", "learning/loss"));
  EXPECT_FALSE(Metric("shards", "eval/avg_loss").empty());
  const std::string fault = Fault([&] { Run(spec({}), "none"); });
  EXPECT_NE(fault.find("'test_sft, train_sft'"), std::string::npos) << fault;
}

TEST_F(SftTest, EveryFormatIsReadByItsName) {
  const fs::path fixtures = tests::SourceDir() / "tests" / "training" / "data" / "fixtures";
  const auto shown = [&](const char* file, int64_t i, const std::vector<std::string>& words = {}) {
    std::vector<std::string> all = {"data.train=" + (fixtures / file).string()};
    all.insert(all.end(), words.begin(), words.end());
    return Shown(Spec(all), i);
  };

  EXPECT_EQ(shown("chat.jsonl", 0),
            "<user>What colour is the sky?<|endoftext|><assistant>[[Blue.<|endoftext|>]]");
  EXPECT_EQ(shown("sharegpt.jsonl", 0),
            "<system>Be short.<|endoftext|><user>What colour is the sky?<|endoftext|>"
            "<assistant>[[Blue.<|endoftext|>]]");
  EXPECT_EQ(shown("alpaca.json", 1),
            "<user>Say hello.<|endoftext|><assistant>[[Hello!<|endoftext|>]]");
  EXPECT_TRUE(shown("alpaca.json", 1, {"data.apply_template=never", "data.overflow=split"})
                  .ends_with("### Response:\n[[Hello!<|endoftext|>]]"));
  EXPECT_EQ(shown("prompt_completion.jsonl", 1), "Two and two is[[ four.<|endoftext|>]]");
  EXPECT_EQ(shown("prompt_completion.jsonl", 1, {"data.apply_template=always"}),
            "<user>Two and two is<|endoftext|><assistant>[[ four.<|endoftext|>]]");
  EXPECT_EQ(shown("text.jsonl", 0), "[[The sky is blue.<|endoftext|>]]");
  EXPECT_EQ(shown("text.jsonl", 0,
                  {"train_data_columns=['source']", "data.on_bad_row=skip", "data.format=text"}),
            "[[school<|endoftext|>]]");
}

TEST_F(SftTest, ParquetAndJsonGiveTheSameSamples) {
  const fs::path fixtures =
      tests::SourceDir() / "tests" / "training" / "data" / "parquet" / "fixtures";
  const auto shown = [&](const char* file, int64_t i) {
    return Shown(Spec({"data.train=" + (fixtures / file).string(), "data.overflow=split"}), i);
  };

  for (const int64_t i : {0, 3}) {
    EXPECT_EQ(shown("chat--snappy.parquet", i), shown("chat.jsonl", i));
    EXPECT_NE(shown("chat.jsonl", i).find("[["), std::string::npos);
  }
}

TEST_F(SftTest, MaxTextsWordsMeanTheSame) {
  const TrainSpec spec = ParseTrainSpec(
      "use_sft: true\nsteps: 2\nload_parameters_path: m\ntrain_files: t.jsonl\n"
      "train_data_columns: \"['prompt', 'completion']\"\nsft_train_on_completion_only: false\n",
      "spec", {});

  EXPECT_EQ(spec.kind, "train.sft");
  EXPECT_EQ(spec.data.columns, (std::vector<std::string>{"prompt", "completion"}));
  EXPECT_EQ(spec.data.train_on_completion_only, std::optional(false));
}

TEST_F(SftTest, StatisticsCountWhatTheyShow) {
  ThreadPool pool(1);
  std::ofstream(dir_ / "train.jsonl", std::ios::app)
      << engine::ReadWholeFile(dir_ / "train.jsonl", 1 << 20);
  const TrainSpec spec = Spec();
  const ModelFiles files = LoadModelFiles(spec);
  OpenDataOptions options;
  options.keep_lengths = true;
  const OpenedData data = OpenData(spec, files, pool, options);
  const std::string text = Statistics(spec, data, "rows");

  EXPECT_NE(text.find("samples                                60\n"), std::string::npos) << text;
  EXPECT_NE(text.find("duplicates                             30\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace tandem::training
