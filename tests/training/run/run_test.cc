#include "training/run/run.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/adapter/lora_adapter.h"
#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "engine/model/model.h"
#include "tests/support/model_harness.h"
#include "tests/training/tiny_run.h"
#include "training/plan/plan.h"
#include "training/setup/run_parts.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

class RunTrainingTest : public TinyRunTest {
 protected:
  TrainSpec Spec(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> words = {
        "model.tokenizer_path=" + (dir_.path() / "base").string(),
        "data.train=" + (dir_.path() / "train.txt").string(),
    };
    words.insert(words.end(), overrides.begin(), overrides.end());
    return ParseTrainSpec(
        "model: {n_layers: 2, hidden_dim: 32, n_heads: 2, n_kv_heads: 1, dropout: 0.1}\n"
        "data: {max_target_length: 64, eos_token: \"<|endoftext|>\"}\n"
        "train: {steps: 12, per_device_batch_size: 2, learning_rate: 3e-3}\n"
        "resources: {threads: 1}\n",
        "spec", words);
  }
};

TEST_F(RunTrainingTest, TheLossFallsAndTheExportLoads) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TrainOutcome outcome =
        Run(Spec({"steps=40", std::string("dtype=") + dtype}), std::string("run-") + dtype);

    const auto losses = Losses(std::string("run-") + dtype);
    ASSERT_EQ(losses.size(), 40u);
    EXPECT_LT(losses.at(39), losses.at(0) - 1);
    EXPECT_EQ(outcome.status, TrainOutcome::Status::kCompleted);
    tests::ModelHarness served(outcome.model_dir, {});
    EXPECT_EQ(served.model().dtype(),
              std::string_view(dtype) == "float32" ? engine::DType::kF32 : engine::DType::kBF16);
  }
}

TEST_F(RunTrainingTest, StepLinesAreMaxTexts) {
  Run(Spec({"steps=2"}), "run");

  EXPECT_EQ(CountEvents("step", "completed step: 0, seconds: "), 1);
  EXPECT_EQ(CountEvents("step", "completed step: 1, seconds: "), 1);
  for (const char* field :
       {", TFLOP/s/device: ", ", Tokens/s/device: ", ", total_weights: ", ", loss: "}) {
    EXPECT_EQ(CountEvents("step", field), 2) << field;
  }
}

TEST_F(RunTrainingTest, AStoppedRunGoesOnBitwise) {
  for (const char* packing : {"best_fit", "concat_then_split"}) {
    for (const char* accumulation : {"1", "3"}) {
      const std::string tag = std::string(packing) + accumulation;
      const TrainSpec spec = Spec({std::string("data.packing=") + packing,
                                   std::string("gradient_accumulation_steps=") + accumulation});
      Run(spec, "whole-" + tag);

      const TrainOutcome first = RunUntil(spec, "parts-" + tag, 4);
      EXPECT_EQ(first.status, TrainOutcome::Status::kStopped);
      EXPECT_EQ(first.step, 5);
      EXPECT_TRUE(first.model_dir.empty());
      Run(spec, "parts-" + tag);

      EXPECT_EQ(Losses("parts-" + tag), Losses("whole-" + tag));
      EXPECT_EQ(Weights("parts-" + tag), Weights("whole-" + tag));
    }
  }
}

TEST_F(RunTrainingTest, ASpoiledCheckpointFallsBackToTheOneBefore) {
  const TrainSpec spec = Spec({"checkpoint_period=4"});
  Run(spec, "whole");
  RunUntil(spec, "parts", 8);
  const fs::path newest = dir_.path() / "parts" / "checkpoints" / "000000000009";
  ASSERT_TRUE(fs::exists(newest));
  fs::resize_file(newest / "optim.safetensors", 100);
  events_.clear();

  Run(spec, "parts");

  EXPECT_EQ(CountEvents("warning", "000000000009 is not usable"), 1);
  EXPECT_EQ(CountEvents("message", "resumed after step 8"), 1);
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
}

TEST_F(RunTrainingTest, ARunWithoutAReadableCheckpointEndsAndNamesThem) {
  const TrainSpec spec = Spec({"checkpoint_period=4"});
  RunUntil(spec, "run", 8);
  const fs::path checkpoints = dir_.path() / "run" / "checkpoints";
  for (const char* step : {"000000000004", "000000000008", "000000000009"}) {
    fs::resize_file(checkpoints / step / "optim.safetensors", 100);
  }
  try {
    Run(spec, "run");
    FAIL() << "the run began";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
    for (const char* part : {"000000000004", "000000000009", "checkpoint.on_unreadable=restart"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  EXPECT_TRUE(fs::exists(checkpoints / "000000000004"));

  EXPECT_EQ(Run(Spec({"checkpoint_period=4", "checkpoint.on_unreadable=restart"}), "run").step, 12);
  EXPECT_TRUE(fs::exists(checkpoints / "earlier-1" / "000000000004"));
}

TEST_F(RunTrainingTest, DataThatChangedIsAnErrorUnlessItIsAllowed) {
  const fs::path data = dir_.path() / "train.txt";
  const std::string text = engine::ReadWholeFile(data, 1 << 20);
  RunUntil(Spec(), "run", 4);
  std::string changed = text;  // as many samples of the same size
  changed.replace(changed.find("dog"), 3, "cow");
  std::ofstream(data) << changed;
  try {
    Run(Spec(), "run");
    FAIL() << "the run went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    for (const char* part : {"train.txt", "has changed", "resume_on_changed_data=continue"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(Run(Spec({"resume_on_changed_data=continue"}), "run").step, 12);
  EXPECT_EQ(CountEvents("warning", "the training data has changed"), 1);
}

TEST_F(RunTrainingTest, TheSameDataUnderAnotherNameResumes) {
  RunUntil(Spec(), "run", 4);
  fs::copy_file(dir_.path() / "train.txt", dir_.path() / "moved.txt");

  EXPECT_EQ(Run(Spec({"dataset_path=" + (dir_.path() / "moved.txt").string()}), "run").step, 12);
}

TEST_F(RunTrainingTest, DropoutOfALoadedModelIsWhatTheSpecSays) {
  const fs::path base = Run(Spec({"steps=1"}), "base-run").model_dir;
  const auto losses = [&](const std::string& name, const std::vector<std::string>& words) {
    std::vector<std::string> all = {"load_parameters_path=" + base.string(), "steps=4"};
    all.insert(all.end(), words.begin(), words.end());
    Run(Spec(all), name);
    return Losses(name);
  };
  const auto off = losses("off", {"dropout_rate=0"});
  EXPECT_NE(losses("half", {"dropout_rate=0.5"}), off);
  EXPECT_EQ(losses("disabled", {"dropout_rate=0.5", "enable_dropout=false"}), off);
}

TEST_F(RunTrainingTest, AFullDiskDoesNotEndTheRun) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{16 << 10, old.rlim_max};

  for (const std::string async : {"true", "false"}) {
    events_.clear();
    // The disk is full from the first checkpoint on, until the run reports it.
    const TrainOutcome outcome =
        Run(Spec({"checkpoint_period=4", "checkpoint.async=" + async}), "run-" + async,
            [&](const ProgressEvent& event) {
              if (event.kind == "checkpoint" && event.message.ends_with("000000000004")) {
                setrlimit(RLIMIT_FSIZE, &small);
              }
              if (event.kind == "warning") setrlimit(RLIMIT_FSIZE, &old);
            });
    setrlimit(RLIMIT_FSIZE, &old);

    const fs::path checkpoints = dir_.path() / ("run-" + async) / "checkpoints";
    EXPECT_EQ(outcome.step, 12);
    EXPECT_EQ(CountEvents("warning", "saving a checkpoint failed, training continues"), 1);
    EXPECT_TRUE(fs::exists(checkpoints / "000000000004"));
    EXPECT_FALSE(fs::exists(checkpoints / "000000000008"));
    EXPECT_TRUE(fs::exists(checkpoints / "000000000012"));
  }
}

TEST_F(RunTrainingTest, ResumingAnotherModelIsRefused) {
  Run(Spec({"steps=2"}), "run");

  EXPECT_THROW(Run(Spec({"steps=4", "model.n_layers=1"}), "run"), Error);
  EXPECT_THROW(Run(Spec({"steps=4", "dtype=float32"}), "run"), Error);
}

TEST_F(RunTrainingTest, ResumingWithOtherSettingsSaysSo) {
  Run(Spec({"steps=2", "learning_rate=1e-3"}), "run");
  events_.clear();
  Run(Spec({"steps=4", "learning_rate=2e-3", "train.schedule.schedule_steps=2"}), "run");

  EXPECT_EQ(CountEvents("warning", "a changed learning_rate"), 1);
  EXPECT_EQ(CountEvents("warning", "a changed "), 1);
}

TEST_F(RunTrainingTest, EarlyStoppingExportsTheBestEvaluation) {
  const std::string eval = "data.eval=" + (dir_.path() / "train.txt").string();
  // A rate this high makes the loss worse after a while.
  const TrainOutcome outcome = Run(
      Spec({eval, "steps=200", "eval_interval=4", "train.early_stopping_patience=3",
            "learning_rate=0.5", "train.schedule.type=constant", "gradient_clipping_threshold=0"}),
      "run");

  EXPECT_LT(outcome.step, 200);
  EXPECT_EQ(CountEvents("message", "stopping: no better evaluation"), 1);
  EXPECT_LE(outcome.best_eval_loss, outcome.eval_loss);
  EXPECT_EQ(Weights("run"),
            engine::ReadWholeFile(dir_.path() / "run" / "best" / "model.safetensors", 1 << 28));
}

// best/ of an earlier run with this name belongs to another configuration.
TEST_F(RunTrainingTest, ABestModelOfAnEarlierRunIsNotExported) {
  const std::string from = "load_parameters_path=" + (dir_.path() / "base").string();
  const std::string eval = "data.eval=" + (dir_.path() / "train.txt").string();
  Run(Spec({from, eval, "steps=4", "eval_interval=2", "lora.rank=4"}), "run");
  ASSERT_TRUE(fs::exists(dir_.path() / "run" / "best"));

  // No learning: the first evaluation stays the best, and is not kept.
  const TrainOutcome outcome =
      Run(Spec({from, eval, "steps=4", "eval_interval=2", "lora.rank=5", "learning_rate=0",
                "checkpoint.resume=false", "checkpoint.export_best=false"}),
          "run");

  EXPECT_EQ(engine::LoraAdapter::Open(outcome.adapter_dir).modules()[0].rank, 5);
}

// Signs that the training text lacks: the better a model knows that text, the worse it knows these.
// So the first evaluation is the best.
TEST_F(RunTrainingTest, TheBestModelIsStillKnownAfterAStop) {
  std::ofstream signs(dir_.path() / "signs.txt");
  for (int i = 0; i < 20; ++i) signs << "#$%&*@^=+~|{}<>[]#$%&*@^=+~|{}<>[]\n<|endoftext|>\n";
  signs.close();
  const std::string eval = "data.eval=" + (dir_.path() / "signs.txt").string();
  const TrainSpec spec =
      Spec({eval, "steps=12", "eval_interval=2", "learning_rate=0.05",
            "train.schedule.type=constant", "gradient_clipping_threshold=0", "dropout_rate=0"});
  const TrainOutcome whole = Run(spec, "whole");
  ASSERT_LT(whole.best_eval_loss, whole.eval_loss);
  RunUntil(spec, "parts", 10);

  Run(spec, "parts");

  EXPECT_EQ(Weights("parts"), Weights("whole"));
  EXPECT_EQ(Weights("parts"),
            engine::ReadWholeFile(dir_.path() / "parts" / "best" / "model.safetensors", 1 << 28));
}

TEST_F(RunTrainingTest, TheDataEndsTheRunAfterItsEpochs) {
  const TrainOutcome outcome = Run(Spec({"steps=1000", "num_epoch=1"}), "run");

  EXPECT_LT(outcome.step, 40);
  EXPECT_EQ(CountEvents("message", "all epochs are done"), 1);
}

// 40 text samples, one per row: ten a step, four steps an epoch.
class ExportsTest : public RunTrainingTest {
 protected:
  TrainSpec Epochs(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"data.eval=" + (dir_.path() / "train.txt").string(),
                                      "data.packing=none",
                                      "per_device_batch_size=10",
                                      "steps=12",
                                      "data.num_epoch=3",
                                      "checkpoint.export_epochs=true",
                                      "checkpoint.export_best=false"};
    words.insert(words.end(), more.begin(), more.end());
    return Spec(words);
  }
  std::set<std::string> Names(const std::string& run, const std::string& folder) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_.path() / run / folder)) {
      names.insert(entry.path().filename());
    }
    return names;
  }
  std::string Exported(const std::string& run, int64_t step) const {
    const std::string name = "step-" + std::to_string(step);
    return engine::ReadWholeFile(dir_.path() / run / "exports" / name / "model.safetensors",
                                 1 << 28);
  }
};

TEST_F(ExportsTest, EveryEpochLeavesAModelAndItsEvaluation) {
  Run(Epochs({"checkpoint.period=2", "checkpoint.keep=1"}), "run");

  // The export of the last step is hf/.
  EXPECT_EQ(Names("run", "exports"), (std::set<std::string>{"step-4", "step-8"}));
  EXPECT_EQ(CountEvents("export", ""), 2);
  std::vector<int64_t> evaluated;
  for (const auto& line : Metrics("run")) {
    if (line.contains("eval/avg_loss")) evaluated.push_back(line["step"]);
  }
  EXPECT_EQ(evaluated, (std::vector<int64_t>{4, 8, 12}));
  Run(Epochs({"steps=4"}), "short");
  EXPECT_NE(Exported("run", 4), Exported("run", 8));
  EXPECT_NO_THROW(engine::ModelDir::Open(dir_.path() / "run" / "exports" / "step-8"));
}

TEST_F(ExportsTest, TheyComeAfterSoManyStepsToo) {
  Run(Epochs({"checkpoint.export_every=3"}), "run");

  EXPECT_EQ(Names("run", "exports"),
            (std::set<std::string>{"step-3", "step-4", "step-6", "step-8", "step-9"}));
}

TEST_F(ExportsTest, ARunThatGoesOnHasThemAllWithTheSameBits) {
  Run(Epochs(), "whole");
  for (const int64_t step : {2, 3, 4, 5}) RunUntil(Epochs(), "parts", step);
  // As if killed after the export and before the next checkpoint.
  fs::remove_all(dir_.path() / "killed");
  RunUntil(Epochs(), "killed", 2);
  fs::create_directories(dir_.path() / "killed" / "exports");
  fs::copy(dir_.path() / "whole" / "exports" / "step-4",
           dir_.path() / "killed" / "exports" / "step-4");

  Run(Epochs(), "parts");
  Run(Epochs(), "killed");

  for (const char* run : {"parts", "killed"}) {
    EXPECT_EQ(Names(run, "exports"), (std::set<std::string>{"step-4", "step-8"})) << run;
    for (const int64_t step : {4, 8}) EXPECT_EQ(Exported(run, step), Exported("whole", step));
    EXPECT_EQ(Weights(run), Weights("whole"));
  }
}

TEST_F(RunTrainingTest, SamplesComeFromTheServingPath) {
  Run(Spec({"steps=2", "train.sample.every=1", "train.sample.prompts=[The, A]",
            "train.sample.max_tokens=5"}),
      "run");

  EXPECT_EQ(CountEvents("sample", ""), 4);
  EXPECT_FALSE(fs::exists(dir_.path() / "run" / "sample-model"));
}

TEST_F(RunTrainingTest, FineTuningStartsFromTheGivenWeights) {
  const std::string from = "load_parameters_path=" + (dir_.path() / "base").string();
  const TrainOutcome outcome =
      Run(Spec({from, "steps=1", "learning_rate=0", "train.schedule.type=constant"}), "run");

  const auto before = engine::ModelDir::Open(dir_.path() / "base");
  const auto after = engine::ModelDir::Open(outcome.model_dir);
  ASSERT_EQ(before.tensor_names(), after.tensor_names());
  for (const std::string& name : before.tensor_names()) {
    const auto* a = before.FindTensor(name);
    const auto* b = after.FindTensor(name);
    ASSERT_EQ(a->bytes(), b->bytes()) << name;
    EXPECT_EQ(std::memcmp(a->data, b->data, a->bytes()), 0) << name;
  }
}

TEST_F(RunTrainingTest, OnlyTheNamedWeightsAreTrained) {
  const std::string from = "load_parameters_path=" + (dir_.path() / "base").string();
  const TrainOutcome outcome =
      Run(Spec({from, "steps=2", "model.trainable=[mlp]", "learning_rate=1e-2"}), "run");

  const auto before = engine::ModelDir::Open(dir_.path() / "base");
  const auto after = engine::ModelDir::Open(outcome.model_dir);
  for (const std::string& name : before.tensor_names()) {
    const auto* a = before.FindTensor(name);
    const bool same = std::memcmp(a->data, after.FindTensor(name)->data, a->bytes()) == 0;
    EXPECT_EQ(same, name.find("mlp") == std::string::npos) << name;
  }
}

TEST(ParameterStore, XavierWeightsHaveItsMoments) {
  const engine::FamilySpec& family = engine::FindFamilyByName("minigpt");
  engine::ModelConfig config = bench::TinyLlamaConfig();
  config.family = "minigpt";
  ParameterStore store(family.list_weights(config), engine::DType::kF32, {}, OptimizerSpec());
  store.InitFresh(1, 0.02, 2, FreshInit::kXavierUniform);

  for (size_t i = 0; i < store.size(); ++i) {
    const engine::WeightSpec& spec = store.specs()[i];
    if (spec.kind == engine::WeightKind::kVector) continue;
    const std::vector<float> values = store.Master(i);
    double squares = 0;
    float most = 0;
    for (const float v : values) {
      squares += static_cast<double>(v) * static_cast<double>(v);
      most = std::max(most, std::abs(v));
    }
    const double deviation = std::sqrt(squares / static_cast<double>(values.size()));
    const auto n = static_cast<double>(spec.n);
    const auto k = static_cast<double>(spec.k);
    if (spec.kind == engine::WeightKind::kMatrix) {
      EXPECT_LE(most, std::sqrt(6 / (n + k)) * 1.0001) << spec.name;
      EXPECT_NEAR(deviation, std::sqrt(2 / (n + k)), 0.1 * deviation) << spec.name;
    } else {
      EXPECT_NEAR(deviation, 1 / std::sqrt(k), 0.1 * deviation) << spec.name;
    }
  }
}

// ---- Plans

int64_t BytesOf(const MemoryNeeds& needs, const std::string& name) {
  for (const MemoryClass& one : needs.classes) {
    if (one.name == name) return one.bytes;
  }
  return 0;
}

TEST_F(RunTrainingTest, ThePlanIsWhatTheTrainerTakes) {
  const std::string from = "load_parameters_path=" + (dir_.path() / "base").string();
  const std::vector<std::vector<std::string>> kinds = {
      {},
      {"dtype=float32", "train.remat=full"},
      {"train.optimizer.state=8bit", "model.hidden_dim=64"},
      {from, "lora.rank=4"},
      {from, "lora.rank=4", "lora.base_dtype=int4"},
  };
  for (const auto& words : kinds) {
    const TrainSpec spec = Spec(words);
    const TrainingPlan plan = PlanTraining(spec, {});
    JobContext context;
    context.dir = dir_.path() / "plan";
    RunParts parts(spec, context);

    const MemoryNeeds& needs = plan.memory;
    EXPECT_EQ(BytesOf(needs, "masters") + BytesOf(needs, "weights") + BytesOf(needs, "gradients") +
                  BytesOf(needs, "moments"),
              parts.trainer.parameters().bytes());
    EXPECT_EQ(BytesOf(needs, "activations"), parts.trainer.program().arena_bytes);
    const auto base = parts.trainer.base();
    EXPECT_EQ(BytesOf(needs, "base"), base ? base->weight_bytes() : 0);
    EXPECT_NE(DescribePlan(plan).find("activations"), std::string::npos);
    EXPECT_EQ(nlohmann::json::parse(PlanJson(plan))["total_bytes"], needs.total_bytes());
  }
}

TEST_F(RunTrainingTest, WhatDoesNotFitIsRefusedWithChangesThatDo) {
  const std::vector<std::string> large = {"per_device_batch_size=16", "model.n_layers=8"};
  const int64_t needed = PlanTraining(Spec(large), {}).memory.total_bytes();
  std::vector<std::string> words = large;
  words.push_back("resources.memory_max_bytes=" + std::to_string(needed - 1));
  const TrainingPlan plan = PlanTraining(Spec(words), {});

  EXPECT_FALSE(plan.fits());
  ASSERT_EQ(plan.changes.size(), 3u);
  for (const PlannedChange& change : plan.changes) {
    EXPECT_TRUE(change.same_result) << change.words;
    std::vector<std::string> changed = words;
    std::istringstream parts(change.words);
    for (std::string word; parts >> word;) changed.push_back(word);
    EXPECT_TRUE(PlanTraining(Spec(changed), {}).fits()) << change.words;
  }
  try {
    Run(Spec(words), "run");
    FAIL() << "the run began";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_NE(std::string(error.what()).find(plan.changes[0].words), std::string::npos);
  }
  EXPECT_FALSE(fs::exists(dir_.path() / "run"));
}

TEST_F(RunTrainingTest, ARunLargerThanTheMachineIsRefusedBeforeItBegins) {
  try {
    Run(Spec({"per_device_batch_size=1000000", "max_target_length=1024"}), "run");
    FAIL() << "the run began";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_NE(std::string(error.what()).find("the machine has"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("Changes that would fit"), std::string::npos)
        << error.what();
  }
  EXPECT_FALSE(fs::exists(dir_.path() / "run"));
}

TEST_F(RunTrainingTest, ThePlanShowsKeysWithoutEffect) {
  const TrainingPlan plan = PlanTraining(Spec({"scan_layers=true"}), {});

  EXPECT_NE(DescribePlan(plan).find("note: scan_layers has no effect:"), std::string::npos);
  EXPECT_NE(PlanJson(plan).find("scan_layers has no effect:"), std::string::npos);
}

TEST_F(RunTrainingTest, WhatNoChangeMakesFitSaysTheLeast) {
  const TrainingPlan plan = PlanTraining(Spec({"resources.memory_max_bytes=1048576"}), {});

  EXPECT_FALSE(plan.fits());
  EXPECT_TRUE(plan.changes.empty());
  EXPECT_GT(plan.smallest.total_bytes, 1 << 20);
  EXPECT_NE(DescribePlan(plan).find("no change is enough"), std::string::npos);
}

// ---- Adapters

std::string AdapterWeights(const fs::path& dir) {
  return engine::ReadWholeFile(dir / "adapter_model.safetensors", 1 << 28);
}

TEST_F(RunTrainingTest, AnAdapterLearnsAndItsExportIsServedBesideTheBase) {
  const std::string from = "load_parameters_path=" + (dir_.path() / "base").string();
  const std::string eval = "data.eval=" + (dir_.path() / "train.txt").string();
  for (const char* dtype : {"float32", "bfloat16"}) {
    const std::string name = std::string("run-") + dtype;
    const TrainOutcome outcome = Run(Spec({from, eval, "steps=60", "lora.rank=4", "lora.alpha=8",
                                           "learning_rate=2e-2", std::string("dtype=") + dtype}),
                                     name);

    EXPECT_LT(Losses(name).at(59), Losses(name).at(0) - 1);
    EXPECT_TRUE(outcome.model_dir.empty());
    EXPECT_EQ(CountEvents("message", "an adapter of rank 4 for 14 layers"), 1);
    EXPECT_EQ(CountEvents("message", "memory: base "), 1);
    EXPECT_EQ(CountEvents("message", " (mapped), parameters "), 0) << "without a cache directory";
    tests::ModelHarness served(dir_.path() / "base", {.dtype = std::string_view(dtype) == "float32"
                                                                   ? engine::DType::kF32
                                                                   : engine::DType::kBF16});
    const std::vector<TokenId> tokens = {84, 104, 101, 32, 99};  // "The c"
    const std::vector<float> before = served.Prefill(tokens, 0);
    const auto adapter = served.LoadAdapter(outcome.adapter_dir);
    EXPECT_EQ(adapter->origin().base_hash, served.model().content_hash());
    EXPECT_EQ(adapter->origin().compute, engine::DTypeName(served.model().dtype()));
    EXPECT_EQ(served.LoadAdapter(outcome.checkpoint)->origin().base_hash,
              served.model().content_hash());
    served.UseAdapter(adapter);
    const std::vector<float> after = served.Prefill(tokens, 0);
    const auto vocab = static_cast<size_t>(served.vocab_size());
    EXPECT_NE(after, before);
    EXPECT_EQ(tests::ArgMax(std::span(after).last(vocab)), 'a');
    events_.clear();
  }
}

TEST_F(RunTrainingTest, ABaseOfAPackedFileSaysThatItsMemoryIsMapped) {
  const std::string from = "load_parameters_path=" + (dir_.path() / "base").string();
  cache_dir_ = dir_.path() / "cache";

  Run(Spec({from, "steps=1", "lora.rank=3"}), "run");

  EXPECT_EQ(CountEvents("message", " (mapped), parameters "), 1);
}

TEST_F(RunTrainingTest, AFreshAdapterChangesNothing) {
  const std::string from = "load_parameters_path=" + (dir_.path() / "base").string();
  const TrainOutcome outcome =
      Run(Spec({from, "steps=1", "lora.rank=3", "learning_rate=0", "dtype=float32"}), "run");

  const auto file =
      engine::SafetensorsFile::Open(outcome.adapter_dir / "adapter_model.safetensors");
  for (const std::string& name : file.names()) {
    const auto* tensor = file.Find(name);
    std::vector<float> values(static_cast<size_t>(tensor->elements()));
    engine::ConvertToF32(*tensor, values);
    float most = 0;
    for (const float value : values) most = std::max(most, std::abs(value));
    if (name.find("lora_B") != std::string::npos) {
      EXPECT_EQ(most, 0) << name;
    } else {
      // Uniform within 1 / sqrt(inputs).
      const float bound = 1 / std::sqrt(static_cast<float>(tensor->shape[1]));
      EXPECT_LE(most, bound) << name;
      EXPECT_GT(most, 0.9f * bound) << name;
    }
  }
  tests::ModelHarness served(dir_.path() / "base", {.dtype = engine::DType::kF32});
  const std::vector<float> before = served.Prefill({1, 2, 3}, 0);
  served.UseAdapter(served.LoadAdapter(outcome.adapter_dir));
  EXPECT_EQ(served.Prefill({1, 2, 3}, 0), before);
}

// Magnitudes rounded to bf16 would scale every row of the base.
TEST_F(RunTrainingTest, AFreshAdapterWithDoraChangesNothingInBf16) {
  const std::string from = "load_parameters_path=" + (dir_.path() / "base").string();
  const TrainOutcome outcome = Run(Spec({from, "steps=1", "lora.rank=3", "lora.use_dora=true",
                                         "learning_rate=0", "dtype=bfloat16"}),
                                   "run");

  const auto adapter = engine::LoraAdapter::Open(outcome.adapter_dir);
  EXPECT_EQ(adapter.modules().at(0).magnitude.dtype, engine::DType::kF32);
  EXPECT_EQ(adapter.modules().at(0).a.dtype, engine::DType::kBF16);
  tests::ModelHarness served(dir_.path() / "base", {.dtype = engine::DType::kBF16});
  const std::vector<float> before = served.Prefill({1, 2, 3}, 0);
  served.UseAdapter(served.LoadAdapter(outcome.adapter_dir));
  EXPECT_EQ(served.Prefill({1, 2, 3}, 0), before);
}

TEST_F(RunTrainingTest, AStoppedAdapterRunGoesOnBitwise) {
  const std::string from = "load_parameters_path=" + (dir_.path() / "base").string();
  for (const char* dora : {"lora.use_dora=false", "lora.use_dora=true"}) {
    events_.clear();
    const std::string name = dora;
    const TrainSpec spec = Spec({from, "lora.rank=4", "gradient_accumulation_steps=2", dora});
    const TrainOutcome whole = Run(spec, name + "-whole");
    RunUntil(spec, name + "-parts", 4);
    const TrainOutcome parts = Run(spec, name + "-parts");

    EXPECT_EQ(CountEvents("message", "resumed after step 5"), 1);
    EXPECT_EQ(Losses(name + "-parts"), Losses(name + "-whole"));
    EXPECT_EQ(AdapterWeights(parts.adapter_dir), AdapterWeights(whole.adapter_dir));
  }
}

TEST_F(RunTrainingTest, AnAdapterOnlyTouchesTheLayersItNames) {
  const std::string from = "load_parameters_path=" + (dir_.path() / "base").string();
  const TrainOutcome outcome =
      Run(Spec({from, "steps=1", R"(lora.module_path=.*mlp\.(up|down)_proj)", "lora.match=full"}),
          "run");

  const auto adapter = engine::LoraAdapter::Open(outcome.adapter_dir);
  ASSERT_EQ(adapter.modules().size(), 4u);
  EXPECT_EQ(adapter.modules()[0].path, "model.layers.0.mlp.down_proj");
  EXPECT_EQ(adapter.modules()[0].rank, 16);
  EXPECT_EQ(adapter.modules()[0].scale, 2);
  EXPECT_THROW(Run(Spec({from, "steps=1", "lora.module_path=nothing"}), "none"), Error);
  EXPECT_THROW(Run(Spec({from, "steps=1", "lora.module_path=(["}), "broken"), Error);
}

TEST_F(RunTrainingTest, ResumingAnotherAdapterOrAnotherBaseIsRefused) {
  const std::string from = "load_parameters_path=" + (dir_.path() / "base").string();
  Run(Spec({from, "steps=2", "lora.rank=4"}), "run");

  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{"lora.rank=5"}, "different lora 'r': '4', now '5'"},
      {{"lora.rank=4", "lora.alpha=7"}, "different lora 'lora_alpha': '32', now '7'"},
      {{"lora.rank=4", "lora.rank_stabilized=true"}, "different lora 'use_rslora'"},
      {{"lora.rank=4", "lora.module_path=mlp"}, "different lora 'target_modules'"},
      {{"lora.rank=4", "lora.use_dora=true"}, "different lora 'use_dora': 'false', now 'true'"},
      {{"lora.rank=4", "lora.modules_to_save=[lm_head]"}, "different lora 'modules_to_save'"},
      {{"lora.rank=4", "lora.rank_pattern=[q_proj=2]"}, "different lora 'rank_pattern'"},
      {{"lora.rank=4", "lora.alpha_pattern=[q_proj=2]"}, "different lora 'alpha_pattern'"},
      {{}, "is of an adapter"}};
  for (const auto& [overrides, part] : cases) {
    std::vector<std::string> words = {from, "steps=4"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    try {
      Run(Spec(words), "run");
      ADD_FAILURE() << "was not refused: " << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("choose another run_name"), std::string::npos);
    }
  }
  fs::remove_all(dir_.path() / "base");
  bench::RandomModelSpec other;
  other.config = bench::TinyLlamaConfig();
  other.with_tokenizer = true;
  other.seed = 2;
  bench::WriteRandomModel(other, dir_.path() / "base");
  EXPECT_THROW(Run(Spec({from, "steps=4", "lora.rank=4"}), "run"), Error);
}

TEST_F(RunTrainingTest, AnAdapterRunGoesOnWhereItsBaseHasMoved) {
  const auto from = [&](const char* base) {
    return "load_parameters_path=" + (dir_.path() / base).string();
  };
  Run(Spec({from("base"), "steps=2", "lora.rank=4"}), "run");
  fs::copy(dir_.path() / "base", dir_.path() / "elsewhere");

  const TrainOutcome outcome = Run(Spec({from("elsewhere"), "steps=4", "lora.rank=4"}), "run");

  EXPECT_EQ(CountEvents("message", "resumed after step 2"), 1);
  EXPECT_EQ(outcome.step, 4);
}

TEST_F(RunTrainingTest, SamplesOfAnAdapterComeFromTheServingPath) {
  const std::string from = "load_parameters_path=" + (dir_.path() / "base").string();
  Run(Spec({from, "lora.rank=4", "steps=2", "train.sample.every=1", "train.sample.prompts=[The]",
            "train.sample.max_tokens=5"}),
      "run");

  EXPECT_EQ(CountEvents("sample", ""), 2);
  EXPECT_FALSE(fs::exists(dir_.path() / "run" / "sample-model"));
}

TEST_F(RunTrainingTest, FieldsOfAFreshModelDescribeLlamaAndMiniGptOnly) {
  for (const char* family : {"gemma2", "qwen3", "gpt2"}) {
    try {
      Run(Spec({std::string("model.family=") + family}), "run");
      ADD_FAILURE() << family << " was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      for (const std::string part : {"model.family", family, "model.config"}) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
  }
  EXPECT_THROW(Run(Spec({"model.family=nonsense"}), "run"), Error);
}

}  // namespace
}  // namespace tandem::training
