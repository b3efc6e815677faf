#include <gtest/gtest.h>

#include <cmath>

#include "engine/adapter/lora_adapter.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "tests/support/model_harness.h"
#include "tests/training/tiny_run.h"
#include "training/plan/plan.h"
#include "training/setup/data_view.h"
#include "training/setup/run_parts.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

class TrainerOptionsTest : public TinyRunTest {
 protected:
  TrainSpec Spec(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> words = {
        "model.tokenizer_path=" + (dir_.path() / "base").string(),
        "data.train=" + (dir_.path() / "train.txt").string(),
    };
    words.insert(words.end(), overrides.begin(), overrides.end());
    return ParseTrainSpec(
        "model: {n_layers: 2, hidden_dim: 32, n_heads: 2, n_kv_heads: 1}\n"
        "data: {max_target_length: 64, eos_token: \"<|endoftext|>\"}\n"
        "train: {steps: 10, per_device_batch_size: 2, learning_rate: 3e-3}\n"
        "resources: {threads: 1}\n",
        "spec", words);
  }
  std::string Refusal(const std::vector<std::string>& overrides) const {
    try {
      Spec(overrides);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
};

TEST_F(TrainerOptionsTest, EveryOptimizerAndTheAverageResumeBitwise) {
  for (const char* optimizer : {"adafactor", "lion", "muon"}) {
    for (const char* dtype : {"float32", "bfloat16"}) {
      const std::string tag = std::string(optimizer) + dtype;
      const TrainSpec spec = Spec(
          {std::string("opt_type=") + optimizer, std::string("dtype=") + dtype, "ema_decay=0.9",
           "neftune_noise_alpha=5", "z_loss_multiplier=1e-3", "checkpoint.export_ema=true"});
      Run(spec, "whole-" + tag);
      RunUntil(spec, "parts-" + tag, 4);
      Run(spec, "parts-" + tag);

      EXPECT_EQ(Losses("parts-" + tag), Losses("whole-" + tag));
      EXPECT_EQ(Weights("parts-" + tag), Weights("whole-" + tag));
      const auto average = [&](const std::string& run) {
        return engine::ReadWholeFile(dir_.path() / run / "ema" / "model.safetensors", 1 << 28);
      };
      EXPECT_EQ(average("parts-" + tag), average("whole-" + tag));
      EXPECT_NE(average("whole-" + tag), Weights("whole-" + tag));
      tests::ModelHarness served(dir_.path() / ("whole-" + tag) / "ema", {});
      EXPECT_GT(served.model().parameter_count(), 0);
    }
  }
}

TEST_F(TrainerOptionsTest, EveryOptimizerLearns) {
  const std::map<std::string, std::string> rates = {
      {"adafactor", "3e-2"}, {"lion", "1e-3"}, {"muon", "3e-3"}};
  for (const auto& [optimizer, rate] : rates) {
    Run(Spec({"steps=40", "opt_type=" + optimizer, "learning_rate=" + rate}), optimizer);
    EXPECT_LT(Losses(optimizer).at(39), Losses(optimizer).at(0) - 0.7) << optimizer;
  }
}

TEST_F(TrainerOptionsTest, TheZLossIsRecordedBesideTheLoss) {
  Run(Spec({"steps=2"}), "plain");
  Run(Spec({"steps=2", "train.z_loss=0.01"}), "z");
  EXPECT_EQ(Losses("z").at(0), Losses("plain").at(0));  // before the first update
  bool found = false;
  for (const auto& line : Metrics("z")) {
    const auto z = line.find("learning/z_loss");
    if (z == line.end()) continue;
    found = true;
    // Fresh logits are near 0, so that lse is near log(vocabulary).
    EXPECT_GT(z->get<double>(), 0.01 * 9);
  }
  EXPECT_TRUE(found);
  for (const auto& line : Metrics("plain")) EXPECT_FALSE(line.contains("learning/z_loss"));
}

TEST_F(TrainerOptionsTest, ThePlanCountsTheirState) {
  const auto parameters_of = [&](const std::vector<std::string>& words) {
    const TrainSpec spec = Spec(words);
    JobContext context;
    const RunParts parts(spec, context);
    const MemoryNeeds needs = FindMemoryNeeds(spec, parts.files);
    int64_t planned = 0;
    for (const MemoryClass& one : needs.classes) {
      for (const char* name : {"masters", "weights", "gradients", "moments", "average"}) {
        if (one.name == name) planned += one.bytes;
      }
    }
    EXPECT_EQ(planned, parts.trainer.parameters().bytes()) << words[0];
    return planned;
  };
  const int64_t adam = parameters_of({"opt_type=adamw"});
  EXPECT_LT(parameters_of({"opt_type=adafactor"}), parameters_of({"opt_type=lion"}));
  EXPECT_LT(parameters_of({"opt_type=lion"}), adam);
  EXPECT_LT(parameters_of({"opt_type=muon"}), adam);
  EXPECT_GT(parameters_of({"opt_type=adamw", "ema_decay=0.5"}), adam);
}

TEST_F(TrainerOptionsTest, WrongValuesAreRefusedByName) {
  EXPECT_NE(Refusal({"ema_decay=1"}).find("ema_decay: must be at least 0 and below 1"),
            std::string::npos);
  EXPECT_NE(Refusal({"train.z_loss=-1"}).find("train.z_loss: "), std::string::npos);
  EXPECT_NE(Refusal({"neftune_noise_alpha=-5"}).find("neftune_noise_alpha: "), std::string::npos);
  EXPECT_NE(Refusal({"opt_type=lion", "train.optimizer.state=8bit"})
                .find("train.optimizer.state: 8bit needs"),
            std::string::npos);
  EXPECT_NE(Refusal({"checkpoint.export_ema=true"}).find("checkpoint.export_ema: needs"),
            std::string::npos);
  EXPECT_NE(Refusal({"kind=train.dpo", "train.z_loss=0.1"}).find("train.z_loss: must be 0"),
            std::string::npos);
}

TEST_F(TrainerOptionsTest, MixturesWindowsAndGrainsOrderResumeBitwise) {
  std::ofstream(dir_.path() / "more.jsonl") << "{\"text\": \"A bird sang in the tree.\"}\n"
                                               "{\"text\": \"A fish swam in the sea.\"}\n";
  const std::string both =
      (dir_.path() / "train.txt").string() + ";" + (dir_.path() / "more.jsonl").string();
  const std::map<std::string, std::vector<std::string>> kinds = {
      {"mixture", {"data.train=" + both, "data.mixture_weights=[3, 1]"}},
      {"window", {"data.shuffle_window=7"}},
      {"grain", {"data.order=grain", "data.seed=42"}},
      {"all", {"data.loss_mask=all", "data.packing=none"}}};
  for (const auto& [name, words] : kinds) {
    const TrainSpec spec = Spec(words);
    Run(spec, "whole-" + name);
    RunUntil(spec, "parts-" + name, 4);
    Run(spec, "parts-" + name);
    EXPECT_EQ(Losses("parts-" + name), Losses("whole-" + name)) << name;
    EXPECT_EQ(Weights("parts-" + name), Weights("whole-" + name)) << name;
  }
  Run(Spec(), "plain");
  for (const auto& [name, words] : kinds)
    EXPECT_NE(Losses("whole-" + name), Losses("plain")) << name;
  // Two rows of 64 places, all trained.
  EXPECT_EQ(Metrics("whole-all").front()["learning/total_weights"], 128);
}

TEST_F(TrainerOptionsTest, AMixtureKnowsWhatItsPartsAre) {
  std::ofstream(dir_.path() / "a.jsonl") << "{\"text\": \"A bird sang in the tree.\"}\n";
  std::ofstream(dir_.path() / "b.jsonl") << "{\"text\": \"A fish swam in the sea.\"}\n"
                                            "{\"text\": \"A fox ran home.\"}\n";
  const auto path = [&](const char* name) { return (dir_.path() / name).string(); };
  const TrainSpec rows = Spec({"data.train=" + path("a.jsonl") + ";" + path("b.jsonl"),
                               "data.mixture_weights=[1, 1]", "steps=1"});
  Run(rows, "rows");
  EXPECT_EQ(CountEvents("message", "3 samples of 3 rows (text)"), 1);
  EXPECT_EQ(CountEvents("message", "unchanged since an earlier check"), 0);
  Run(rows, "rows");
  EXPECT_EQ(CountEvents("message", "unchanged since an earlier check"), 1);

  const TrainSpec mixed = Spec({"data.train=" + path("a.jsonl") + ";" + path("train.txt"),
                                "data.mixture_weights=[1, 1]", "steps=1"});
  Run(mixed, "mixed");
  EXPECT_EQ(CountEvents("message", "of 2 paths (text, plain)"), 1);
  // One prepared file would hold the parts in a row, and some of them twice or never.
  ThreadPool pool(1);
  const auto error = ::tandem::ErrorOf([&] {
    PrepareData(mixed, LoadModelFiles(mixed), pool, DataSplit::kTrain, dir_.path() / "x.tok");
  });
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find("data.mixture_weights: "), std::string::npos);
}

// A run that begins anew does not keep the weights of the run before it.
TEST_F(TrainerOptionsTest, WeightsOfDeletedCheckpointsAreOfThisRun) {
  const std::vector<std::string> words = {"steps=6", "checkpoint.period=2", "checkpoint.keep=1",
                                          "checkpoint.keep_parameters=true",
                                          "checkpoint.async=false"};
  const auto step2 = [&] {
    return engine::ReadWholeFile(dir_.path() / "run" / "parameters/step-2/model.safetensors",
                                 1 << 28);
  };
  Run(Spec(words));
  const std::string before = step2();
  for (const bool deletes : {false, true}) {
    std::vector<std::string> other = words;
    other.push_back("learning_rate=" + std::string(deletes ? "1e-2" : "1e-1"));
    other.push_back("checkpoint.resume=" + std::string(deletes ? "true" : "false"));
    if (deletes) fs::remove_all(dir_.path() / "run" / "checkpoints");
    const std::string old = step2();
    Run(Spec(other));
    EXPECT_NE(step2(), old) << deletes;
  }
  EXPECT_NE(step2(), before);
}

TEST_F(TrainerOptionsTest, OrderKeysAreCheckedTogether) {
  EXPECT_NE(Refusal({"data.mixture_weights=[1, 2]"}).find("has 2 weights, but data.train names 1"),
            std::string::npos);
  EXPECT_NE(Refusal({"data.loss_mask=all"}).find("data.loss_mask: all needs data.packing none"),
            std::string::npos);
  EXPECT_NE(Refusal({"data.order=grain", "data.shuffle_window=4"}).find("data.shuffle_window: "),
            std::string::npos);
  EXPECT_NE(Refusal({"data.order=file"}).find("must be one of permuted, grain"), std::string::npos);
  EXPECT_NE(Refusal({"data.mixture_weights=[-1]"}).find("data.mixture_weights: "),
            std::string::npos);
}

TEST_F(TrainerOptionsTest, PatternsGiveModulesOtherRanksAndTheExportSaysSo) {
  const std::string base = (dir_.path() / "base").string();
  const TrainSpec spec = ParseTrainSpec(
      "load_parameters_path: " + base + "\ndata.train: " + (dir_.path() / "train.txt").string() +
          "\nlora: {rank: 4, alpha: 8, module_path: \"q_proj|up_proj\",\n"
          "  rank_pattern: {q_proj: 2}, alpha_pattern: {layers.0.mlp.up_proj: 20}}\n"
          "data: {max_target_length: 64, eos_token: \"<|endoftext|>\"}\n"
          "train: {steps: 6, per_device_batch_size: 2}\nresources: {threads: 1}\n",
      "spec", {});
  Run(spec, "whole");
  RunUntil(spec, "parts", 2);
  Run(spec, "parts");
  EXPECT_EQ(Losses("parts"), Losses("whole"));

  const auto adapter = engine::LoraAdapter::Open(dir_.path() / "whole" / "adapter");
  for (const engine::LoraModule& module : adapter.modules()) {
    const bool is_q = module.path.ends_with("q_proj");
    EXPECT_EQ(module.rank, is_q ? 2 : 4) << module.path;
    EXPECT_EQ(module.scale, is_q                                            ? 4
                            : module.path.ends_with("layers.0.mlp.up_proj") ? 5
                                                                            : 2)
        << module.path;
  }
  // Training goes on with the same ranks and scales.
  TrainSpec next = ParseTrainSpec(
      "load_parameters_path: " + base + "\ndata.train: " + (dir_.path() / "train.txt").string() +
          "\nlora: {load_path: " + (dir_.path() / "whole" / "adapter").string() +
          "}\ndata: {max_target_length: 64, eos_token: \"<|endoftext|>\"}\n"
          "train: {steps: 1, per_device_batch_size: 2, learning_rate: 0}\n"
          "resources: {threads: 1}\n",
      "spec", {});
  Run(next, "next");
  const auto again = engine::LoraAdapter::Open(dir_.path() / "next" / "adapter");
  ASSERT_EQ(again.modules().size(), adapter.modules().size());
  for (size_t i = 0; i < again.modules().size(); ++i) {
    EXPECT_EQ(again.modules()[i].rank, adapter.modules()[i].rank);
    EXPECT_EQ(again.modules()[i].scale, adapter.modules()[i].scale);
  }
  next = spec;
  next.lora.rank_pattern = {{"no_proj", 2}};
  try {
    Run(next, "refused");
    ADD_FAILURE() << "the run began";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("lora.rank_pattern: \"no_proj\""), std::string::npos);
  }
  EXPECT_NE(Refusal({"lora.rank_pattern=[q_proj]"}).find("lora.rank_pattern: must be a mapping"),
            std::string::npos);
  EXPECT_NE(Refusal({"lora.rank_pattern=[q_proj=0]"}).find("lora.rank_pattern: "),
            std::string::npos);
}

TEST_F(TrainerOptionsTest, SyntheticDataNeedNoFileAndAreLearned) {
  const std::string text = "model: {n_layers: 1, hidden_dim: 32, n_heads: 2, tokenizer_path: " +
                           (dir_.path() / "base").string() +
                           "}\ndataset_type: synthetic\nmax_target_length: 16\n"
                           "train: {steps: 40, per_device_batch_size: 8, learning_rate: 2e-2}\n"
                           "resources: {threads: 1}\n";
  const TrainSpec spec = ParseTrainSpec(text, "spec", {});
  Run(spec, "whole");
  EXPECT_LT(Losses("whole").at(39), Losses("whole").at(0) - 0.3);
  RunUntil(spec, "parts", 9);
  Run(spec, "parts");
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(CountEvents("message", "Memstats: after the run: using (GB) "), 2);
  EXPECT_NE(Refusal({"data.source=synthetic"}).find("data.train: must not be given"),
            std::string::npos);
  EXPECT_NE(Refusal({"data.source=synthetic", "kind=sft"}).find("needs kind train.pretrain"),
            std::string::npos);
}

TEST_F(TrainerOptionsTest, AFreshRunSamplesBeforeItsFirstStepOnDemand) {
  const TrainSpec spec = Spec({"train.sample.at_start=true", "train.sample.max_tokens=4"});
  RunUntil(spec, "run", 2);
  EXPECT_EQ(CountEvents("sample", "Once upon a time"), 1);
  Run(spec, "run");  // a resumed run has no start
  EXPECT_EQ(CountEvents("sample", "Once upon a time"), 1);
}

TEST_F(TrainerOptionsTest, OldCheckpointsLeaveTheirWeights) {
  Run(Spec({"checkpoint.period=2", "checkpoint.keep=2", "checkpoint.keep_parameters=true",
            "checkpoint.async=false", "checkpoint.export_every=4"}));
  const fs::path kept = dir_.path() / "run" / "parameters";
  for (const char* step : {"step-2", "step-4", "step-6"}) {
    EXPECT_TRUE(fs::exists(kept / step / "model.safetensors")) << step;
    EXPECT_FALSE(fs::exists(kept / step / "optim.safetensors")) << step;
    EXPECT_FALSE(fs::exists(kept / step / "manifest.json")) << step;
  }
  EXPECT_FALSE(fs::exists(kept / "step-8"));
  EXPECT_TRUE(fs::exists(dir_.path() / "run" / "checkpoints" / "000000000008"));
  EXPECT_EQ(engine::ReadWholeFile(kept / "step-4" / "model.safetensors", 1 << 28),
            engine::ReadWholeFile(dir_.path() / "run/exports/step-4/model.safetensors", 1 << 28));
  tests::ModelHarness served(kept / "step-4", {});
  EXPECT_GT(served.model().parameter_count(), 0);
}

TEST(ParameterAverage, FollowsItsFormulaAndSwapsExactly) {
  for (const engine::DType dtype : {engine::DType::kF32, engine::DType::kBF16}) {
    engine::WeightSpec weight;
    weight.name = "w";
    weight.source_shape = {3, 4};
    weight.n = 3;
    weight.k = 4;
    OptimizerSpec optimizer;
    optimizer.ema_decay = 0.75;
    ParameterStore store({weight}, dtype, {}, optimizer);
    ThreadPool pool(1);
    engine::OpsContext ops(engine::Kernels(), pool);
    std::vector<float> want(12, 1.0f);
    store.SetMaster(0, want);
    store.ResetAverage();
    for (int t = 1; t <= 4; ++t) {
      std::vector<float> values;
      for (int i = 0; i < 12; ++i) values.push_back(0.3f * static_cast<float>(i * t) - 1);
      store.SetMaster(0, values);
      store.UpdateAverage(ops);
      for (size_t i = 0; i < 12; ++i) want[i] = 0.75f * want[i] + 0.25f * values[i];
    }
    const std::vector<float> before = store.Master(0);
    store.SwapAverage();
    for (size_t i = 0; i < 12; ++i) EXPECT_NEAR(store.Master(0)[i], want[i], 1e-6);
    store.SwapAverage();
    EXPECT_EQ(store.Master(0), before);
  }
}

}  // namespace
}  // namespace tandem::training
