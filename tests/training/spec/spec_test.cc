#include "training/spec/spec.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/base/error.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"
#include "training/spec/explain.h"
#include "training/spec/spec_foreign.h"
#include "training/spec/spec_keys.h"

namespace tandem::training {
namespace {

const std::string kMinimal = "steps: 10\ndataset_path: a.txt\ntokenizer_path: tok\n";

TrainSpec Parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return ParseTrainSpec(text, "spec", overrides);
}

std::string FaultsOf(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    Parse(text, overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return {};
}

TEST(TrainSpec, MaxTextKeysAndOursMeanTheSame) {
  const TrainSpec a = Parse(
      "steps: 100\nlearning_rate: 2e-5\nper_device_batch_size: 3\nmax_target_length: 64\n"
      "gradient_accumulation_steps: 2\nwarmup_steps_fraction: 0.2\nadam_b1: 0.8\nadam_b2: 0.9\n"
      "adam_eps: 1e-6\nadam_weight_decay: 0.05\nbase_output_directory: out\nrun_name: r\n"
      "checkpoint_period: 7\ndataset_path: d.txt\neval_interval: -1\ntokenizer_path: t\n"
      "cosine_learning_rate_final_fraction: 0.3\n");
  const TrainSpec b = Parse(
      "run_name: r\nbase_output_directory: out\nmodel: {tokenizer_path: t}\n"
      "data: {train: d.txt, max_target_length: 64}\n"
      "train:\n  steps: 100\n  learning_rate: 2e-5\n  per_device_batch_size: 3\n"
      "  gradient_accumulation_steps: 2\n"
      "  schedule: {warmup_fraction: 0.2, final_fraction: 0.3}\n"
      "  optimizer: {b1: 0.8, b2: 0.9, eps: 1e-6, weight_decay: 0.05}\n"
      "checkpoint: {period: 7}\n");

  for (const TrainSpec& spec : {a, b}) {
    EXPECT_EQ(spec.train.steps, 100);
    EXPECT_EQ(spec.train.schedule.learning_rate, 2e-5);
    EXPECT_EQ(spec.train.schedule.schedule_steps, 100);
    EXPECT_EQ(spec.train.schedule.warmup_fraction, 0.2);
    EXPECT_EQ(spec.train.schedule.final_fraction, 0.3);
    EXPECT_EQ(spec.train.per_device_batch_size, 3);
    EXPECT_EQ(spec.train.gradient_accumulation_steps, 2);
    EXPECT_EQ(spec.train.optimizer.b1, 0.8);
    EXPECT_EQ(spec.train.optimizer.b2, 0.9);
    EXPECT_EQ(spec.train.optimizer.eps, 1e-6);
    EXPECT_EQ(spec.train.optimizer.weight_decay, 0.05);
    EXPECT_EQ(spec.data.max_target_length, 64);
    EXPECT_EQ(spec.checkpoint.period, 7);
    EXPECT_EQ(spec.train.eval_interval, 0);
    EXPECT_EQ(spec.run_dir(), std::filesystem::path("out/r"));
  }
}

TEST(TrainSpec, JsonIsReadToo) {
  const TrainSpec spec = Parse(
      "{\"train\": {\"steps\": 5, \"sample\": {\"prompts\": [\"a\", \"b\"]}}, "
      "\"data\": {\"train\": \"x\"}, \"model\": {\"tokenizer_path\": \"t\"}}");

  EXPECT_EQ(spec.train.steps, 5);
  EXPECT_EQ(spec.train.sample.prompts, (std::vector<std::string>{"a", "b"}));
}

TEST(TrainSpec, OverridesWinOverTheFile) {
  const TrainSpec spec = Parse(kMinimal, {"steps=20", "train.learning_rate=0.5",
                                          "train.sample.prompts=[x, y]", "data.seed=1"});

  EXPECT_EQ(spec.train.steps, 20);
  EXPECT_EQ(spec.train.schedule.learning_rate, 0.5);
  EXPECT_EQ(spec.train.sample.prompts.size(), 2u);
  EXPECT_EQ(spec.data.seed, 1u);
}

TEST(TrainSpec, UnknownKeysComeWithTheNearestKnownOne) {
  EXPECT_NE(FaultsOf(kMinimal + "learning_rat: 1\n").find("did you mean learning_rate?"),
            std::string::npos);
  EXPECT_NE(FaultsOf(kMinimal, {"train.optimizer.b3=1"}).find("train.optimizer.b"),
            std::string::npos);
}

TEST(TrainSpec, AllFaultsAreInOneMessage) {
  const std::string message = FaultsOf(
      "steps: -1\nadam_b1: nine\nmodel: {n_heads: 3, hidden_dim: 64}\ndata: {packing: tight}\n"
      "precision: {compute: fp4}\nmax_target_length: 1.5\n",
      {"oops"});

  for (const char* part : {"steps: must be in [1", "adam_b1: must be a number", "n_heads: 3",
                           "data.packing: must be one of none", "precision.compute",
                           "max_target_length: must be a whole number", "data.train",
                           "model.tokenizer_path", "must be key=value"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in:\n" << message;
  }
}

TEST(TrainSpec, IntegerWeightsAreRefusedWithTheWayOut) {
  const std::string faults = FaultsOf(kMinimal + "dtype: int8\n");
  EXPECT_NE(faults.find("int8 weights can be served but not trained"), std::string::npos) << faults;
  EXPECT_NE(faults.find("--dtype int8"), std::string::npos) << faults;
}

TEST(TrainSpec, AKeyGivenTwiceUnderTwoNamesIsAFault) {
  EXPECT_NE(FaultsOf(kMinimal + "train: {steps: 3}\n").find("given twice"), std::string::npos);
}

TEST(TrainSpec, EnvironmentVariablesAreReplaced) {
  setenv("TANDEM_TEST_DIR", "/data", 1);
  const TrainSpec spec = Parse(kMinimal + "run_name: \"${TANDEM_TEST_DIR}-${NOT_SET:-x}\"\n");
  EXPECT_EQ(spec.run_name, "/data-x");

  EXPECT_NE(FaultsOf(kMinimal + "run_name: \"${NOT_SET_AT_ALL}\"\n").find("NOT_SET_AT_ALL"),
            std::string::npos);
  unsetenv("TANDEM_TEST_DIR");
}

TEST(TrainSpec, KeysOfMaxTextsBackendAreNotedAndIgnored) {
  const TrainSpec spec = Parse(kMinimal + "hardware: tpu\nscan_layers: true\n");
  EXPECT_EQ(spec.notes.size(), 2u);
  EXPECT_EQ(Parse(kMinimal + "jax_cache_dir: x\nmesh_axes: [data, fsdp]\n").notes.size(), 2u);
}

// Ignoring these keys would silently give the user another run.
TEST(TrainSpec, KeysThatCannotBeFollowedAreRefusedUnlessTheyAreOff) {
  EXPECT_EQ(Parse(kMinimal + "quantization: none\neval_start_step: 0\n").notes.size(), 2u);
  EXPECT_NE(FaultsOf(kMinimal + "eval_start_step: 5\n").find("is not supported"),
            std::string::npos);
}

// Keys of MaxText's own command: back end, mesh of one, token.
TEST(TrainSpec, SeedBsCommandIsAcceptedAsWritten) {
  const TrainSpec spec = LoadTrainSpec(
      "kind=train.sft",
      std::vector<std::string>{"load_parameters_path=m", "dataset_path=d.jsonl", "steps=10",
                               "hf_access_token=hf_secret", "enable_single_controller=True",
                               "skip_jax_distributed_system=True", "ici_fsdp_parallelism=-1",
                               "dcn_data_parallelism=1"});

  EXPECT_EQ(spec.hub_token, "hf_secret");
  EXPECT_EQ(spec.notes.size(), 2u);
  EXPECT_EQ(ResolveMesh(spec.parallel.mesh, 1).ranks(), 1);
}

TEST(TrainSpec, ATokenIsNeverShown) {
  const std::vector<std::string> words = {"load_parameters_path=m", "dataset_path=d.jsonl",
                                          "steps=10", "hf_access_token=hf_secret"};
  const TrainSpec spec = LoadTrainSpec("kind=train.sft", words);

  std::string shown = ShowSpec(spec) + ExplainKey("hf_access_token", &spec);
  for (const std::string& note : spec.notes) shown += note;
  for (const auto& [key, origin] : spec.origins) shown += key + origin;
  EXPECT_EQ(shown.find("hf_secret"), std::string::npos) << shown;
  EXPECT_EQ(FaultsOf(kMinimal, {"hf_access_token=[hf_secret"}).find("hf_secret"),
            std::string::npos);
  // Requests and pipelines are recorded, so a spec must not contain a token.
  const std::string faults = FaultsOf(kMinimal + "hf_access_token: hf_secret\n");
  EXPECT_NE(faults.find("HF_TOKEN"), std::string::npos) << faults;
  EXPECT_EQ(faults.find("hf_secret"), std::string::npos) << faults;
}

TEST(TrainSpec, TheMeshHasMaxTextsKeys) {
  const TrainSpec spec = Parse(kMinimal, {"dcn_data_parallelism=2", "ici_data_parallelism=-1",
                                          "ici_fsdp_parallelism=1", "ici_tensor_parallelism=1"});
  EXPECT_EQ(ResolveMesh(spec.parallel.mesh, 8).data, 8);
  EXPECT_TRUE(spec.notes.empty());
  EXPECT_EQ(ResolveMesh(Parse(kMinimal, {"mesh=[4, 1]"}).parallel.mesh, 4).data, 4);
  const TrainSpec split = Parse(kMinimal, {"ici_tensor_parallelism=2", "dcn_tensor_parallelism=2"});
  EXPECT_EQ(ResolveMesh(split.parallel.mesh, 8).tensor, 4);
  // One rank runs, so a spec for two is refused.
  EXPECT_THROW(ResolveMesh(Parse(kMinimal, {"dcn_data_parallelism=2"}).parallel.mesh, 1), Error);
}

TEST(TrainSpec, UnsupportedAxesAreRefusedByNameWithTheWayOut) {
  EXPECT_NE(FaultsOf(kMinimal, {"mesh=2x2"}).find("must be a number of ranks"), std::string::npos);
  for (const char* word : {"ici_sequence_parallelism=2", "dcn_expert_parallelism=4"}) {
    EXPECT_NE(
        FaultsOf(kMinimal, {word}).find("the axes data, fsdp, tensor and tensor_sequence only"),
        std::string::npos)
        << FaultsOf(kMinimal, {word});
  }
}

TEST(TrainSpec, MomentsThatWouldBeNaNAreFaults) {
  for (const char* word : {"adam_b1=1", "adam_b2=1", "adam_b2=0.99999999999", "adam_b1=-0.1",
                           "adam_eps=-1e-8", "adam_eps=0"}) {
    EXPECT_NE(FaultsOf(kMinimal, {word}).find(": must be "), std::string::npos) << word;
  }
  EXPECT_NO_THROW(Parse(kMinimal, {"adam_eps=0", "adam_eps_root=1e-8"}));
  EXPECT_NO_THROW(Parse(kMinimal, {"adam_eps=0", "opt_type=sgd"}));
}

TEST(TrainSpec, PresetsFindTheirFilesFromAnyWorkingDirectory) {
  const std::filesystem::path presets = tests::SourceDir() / "config/presets";
  for (const char* name : {"continue-stories.yaml", "prefer-kind-stories.yaml"}) {
    const TrainSpec spec = LoadTrainSpec(presets / name, std::vector<std::string>{"data.train=d"});
    EXPECT_TRUE(spec.model.load_parameters_path.is_absolute()) << name;
    EXPECT_TRUE(std::filesystem::exists(spec.model.load_parameters_path)) << name;
  }
  EXPECT_TRUE(
      std::filesystem::exists(LoadTrainSpec(presets / "prefer-kind-stories.yaml", {}).data.train));
  EXPECT_NE(FaultsOf(kMinimal + "run_name: ${SPEC_DIR}\n").find("SPEC_DIR"), std::string::npos);
}

TEST(TrainSpec, TheDefaultOfAVariableMayHoldAnother) {
  setenv("TANDEM_TEST_DIR", "/data", 1);
  EXPECT_EQ(Parse(kMinimal + "run_name: \"${NOT_SET:-${TANDEM_TEST_DIR}/x}-y\"\n").run_name,
            "/data/x-y");
  unsetenv("TANDEM_TEST_DIR");
}

TEST(TrainSpec, BrokenYamlIsOneFaultNotACrash) {
  EXPECT_FALSE(FaultsOf("a: [1, 2\nb: }").empty());
  EXPECT_FALSE(FaultsOf("- 1\n- 2\n").empty());
  EXPECT_FALSE(FaultsOf("").empty());
}

TEST(TrainSpec, TheMiniGptPresetIsTheTutorials) {
  const TrainSpec spec =
      LoadTrainSpec((tests::SourceDir() / "config/presets/minigpt-tinystories.yaml").string(),
                    std::vector<std::string>{"tokenizer_path=t"});

  EXPECT_EQ(spec.model.family, "minigpt");
  EXPECT_EQ(spec.model.n_layers, 4);
  EXPECT_EQ(spec.data.max_target_length, 256);
  EXPECT_EQ(spec.train.per_device_batch_size * spec.train.gradient_accumulation_steps, 144);
  EXPECT_EQ(spec.train.optimizer.kind, OptimizerKind::kAdam);
  EXPECT_EQ(spec.train.schedule.learning_rate, 1e-3);
}

TEST(TrainSpec, EveryPresetIsASpec) {
  int n_presets = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(tests::SourceDir() / "config/presets")) {
    if (file.path().extension() != ".yaml") continue;  // data that a preset trains on
    SCOPED_TRACE(file.path().string());
    std::vector<std::string> words = {"tokenizer_path=t"};
    if (file.path().stem() != "tiny-synthetic") words.push_back("dataset_path=d");
    EXPECT_NO_THROW(LoadTrainSpec(file.path().string(), words));
    ++n_presets;
  }
  EXPECT_GE(n_presets, 4);
}

TEST(TrainSpec, ThePresetInMaxTextsWordsMeansWhatItsDemoRuns) {
  const TrainSpec spec =
      LoadTrainSpec((tests::SourceDir() / "config/presets/gemma2-ultrachat.yaml").string(), {});

  EXPECT_EQ(spec.kind, "train.sft");
  EXPECT_EQ(spec.train.steps, 1000);
  EXPECT_EQ(spec.train.per_device_batch_size, 8);
  EXPECT_EQ(spec.data.max_target_length, 1024);
  EXPECT_EQ(spec.data.columns, std::vector<std::string>{"messages"});
  EXPECT_EQ(spec.compute, engine::DType::kBF16);
  EXPECT_EQ(spec.checkpoint.keep, 2);
  EXPECT_EQ(spec.log_period, 10);
}

TEST(TrainSpec, ValuesKnowWhereTheyCameFrom) {
  setenv("TANDEM_TEST_NAME", "r", 1);
  const TrainSpec spec =
      Parse(kMinimal + "run_name: ${TANDEM_TEST_NAME}\ntrain:\n  eval_steps: 2\n",
            {"train.learning_rate=1", "prompt=[a, b]"});
  unsetenv("TANDEM_TEST_NAME");

  EXPECT_EQ(spec.origins.at("train.steps"), "spec:1");
  EXPECT_EQ(spec.origins.at("run_name"), "spec:4, environment variable TANDEM_TEST_NAME");
  EXPECT_EQ(spec.origins.at("train.eval_steps"), "spec:6");
  EXPECT_EQ(spec.origins.at("train.learning_rate"), "command line");
  EXPECT_EQ(spec.origins.at("train.sample.prompts"), "command line");
  EXPECT_FALSE(spec.origins.contains("train.optimizer.b1"));
}

void Write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

std::string FaultsOfFile(const std::filesystem::path& path) {
  try {
    LoadTrainSpec(path, {});
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(BaseConfig, AFileChangesWhatItBuildsOn) {
  const tests::TemporaryDir dir;
  Write(dir / "a/base.yaml", kMinimal + "learning_rate: 0.5\nadam_b1: 0.8\n");
  Write(dir / "a/middle.yaml", "base_config: base.yaml\nadam_b1: 0.7\nadam_b2: 0.9\n");
  Write(dir / "own.yaml", "base_config: a/middle.yaml\ntrain: {optimizer: {b2: 0.6}}\n");
  const TrainSpec spec =
      LoadTrainSpec(dir / "own.yaml", std::vector<std::string>{"learning_rate=0.25"});

  EXPECT_EQ(spec.train.steps, 10);
  EXPECT_EQ(spec.train.optimizer.b1, 0.7);
  EXPECT_EQ(spec.train.optimizer.b2, 0.6);
  EXPECT_EQ(spec.train.schedule.learning_rate, 0.25);
  EXPECT_EQ(spec.origins.at("train.steps"), (dir / "a/base.yaml").string() + ":1");
  EXPECT_EQ(spec.origins.at("train.optimizer.b1"), (dir / "a/middle.yaml").string() + ":2");
  EXPECT_EQ(spec.origins.at("train.optimizer.b2"), (dir / "own.yaml").string() + ":2");
  EXPECT_EQ(spec.origins.at("train.learning_rate"), "command line");
  EXPECT_NE(ExplainKey("adam_b1", &spec).find("(" + (dir / "a/middle.yaml").string() + ":2)"),
            std::string::npos);
}

TEST(TrainSpec, WordsAloneAreASpec) {
  const TrainSpec spec = LoadTrainSpec(
      "kind=train.sft", std::vector<std::string>{"load_parameters_path=model", "data.train=a.jsonl",
                                                 "steps=7", "run_name=r"});
  EXPECT_EQ(spec.kind, "train.sft");
  EXPECT_EQ(spec.train.steps, 7);
  EXPECT_THROW(LoadTrainSpec("nothing.yaml", {}), Error);
}

TEST(BaseConfig, CirclesAndLongChainsAreFaults) {
  const tests::TemporaryDir dir;
  Write(dir / "a.yaml", "base_config: b.yaml\n" + kMinimal);
  Write(dir / "b.yaml", "base_config: ./a.yaml\n");
  EXPECT_NE(FaultsOfFile(dir / "a.yaml").find("is its own base"), std::string::npos);
  Write(dir / "a.yaml", "base_config: a.yaml\n" + kMinimal);
  EXPECT_NE(FaultsOfFile(dir / "a.yaml").find("is its own base"), std::string::npos);
  Write(dir / "0.yaml", kMinimal);
  for (int i = 1; i <= 9; ++i) {
    Write(dir / (std::to_string(i) + ".yaml"), "base_config: " + std::to_string(i - 1) + ".yaml\n");
  }
  EXPECT_EQ(FaultsOfFile(dir / "8.yaml"), "");
  EXPECT_NE(FaultsOfFile(dir / "9.yaml").find("longer than 8 files"), std::string::npos);
}

TEST(BaseConfig, FaultsOfWhatIsBuiltOnSayWhoseTheyAre) {
  const tests::TemporaryDir dir;
  Write(dir / "base.yaml", kMinimal + "adam_b1: x\n");
  Write(dir / "own.yaml", "base_config: base.yaml\nadam_b2: x\n");
  const std::string faults = FaultsOfFile(dir / "own.yaml");
  EXPECT_NE(faults.find("\n  " + (dir / "base.yaml").string() + ": adam_b1: "), std::string::npos)
      << faults;
  EXPECT_NE(faults.find("\n  adam_b2: "), std::string::npos) << faults;
}

TEST(BaseConfig, AFileThatIsNotThereIsAFaultUnlessItIsMaxTextsOwn) {
  const tests::TemporaryDir dir;
  Write(dir / "own.yaml", "base_config: none.yaml\n" + kMinimal);
  EXPECT_NE(FaultsOfFile(dir / "own.yaml").find("none.yaml does not exist"), std::string::npos);
  Write(dir / "own.yaml", "base_config: base.yml\n" + kMinimal);
  EXPECT_EQ(LoadTrainSpec(dir / "own.yaml", {}).notes.size(), 1u);
}

TEST(BaseConfig, IsOfFilesAlone) {
  EXPECT_NE(FaultsOf(kMinimal + "base_config: /etc/passwd\n")
                .find("base_config: is only allowed in a spec file"),
            std::string::npos);
  EXPECT_NE(FaultsOf(kMinimal, {"base_config=a.yaml"})
                .find("base_config: is only allowed in a spec file"),
            std::string::npos);
}

TEST(DataSets, AHubsDataSetIsBothTrainingAndEvaluation) {
  const std::string set = "steps: 1\ntokenizer_path: t\nhf_path: sets/chat\n";
  EXPECT_EQ(Parse(set).data.train, "sets/chat");
  EXPECT_TRUE(Parse(set).data.eval.empty());
  const TrainSpec both = Parse(set + "train_split: train_sft\nhf_eval_split: test_sft\n");
  EXPECT_EQ(both.data.train_split, "train_sft");
  EXPECT_EQ(both.data.eval, "sets/chat");
  EXPECT_EQ(both.data.eval_split, "test_sft");
  EXPECT_EQ(both.origins.at("data.eval"), "spec:3");
  // An explicit key wins.
  EXPECT_EQ(Parse(set, {"data.train=rows.tok"}).data.train, "rows.tok");
  EXPECT_NE(FaultsOf(kMinimal + "eval_split: test\n")
                .find("data.eval: must be given with data.eval_split"),
            std::string::npos);
  EXPECT_NE(
      FaultsOf(kMinimal + "hf_name: subset\n").find("set hf_path to the directory of the subset"),
      std::string::npos);
}

TEST(DataSets, AListOfFilesIsKeptInOrder) {
  const TrainSpec spec =
      Parse("steps: 1\ntokenizer_path: t\ndata: {train: [b.jsonl, 'a*.jsonl']}\n");
  EXPECT_EQ(spec.data.train, "b.jsonl;a*.jsonl");
}

TEST(SpecKeys, NamesAreUnique) {
  std::set<std::string> names;
  for (const SpecKey& key : SpecKeys()) {
    for (const std::string& name : key.names) EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_FALSE(key.effect.empty()) << key.names[0];
    EXPECT_FALSE(DefaultOf(key).empty()) << key.names[0];
  }
}

// Every shown value can be set: reading it back gives the same spec.
TEST(SpecKeys, WhatIsShownCanBeWritten) {
  const TrainSpec spec = Parse(kMinimal, {"model.trainable=[a, b]", "adam_b1=0.5"});
  std::vector<std::string> words;
  for (const SpecKey& key : SpecKeys()) {
    const std::string shown = key.value.show ? key.value.show(spec) : "";
    if (!shown.empty()) words.push_back(key.names[0] + "=" + shown);
  }
  const TrainSpec again = Parse(kMinimal, words);
  for (const SpecKey& key : SpecKeys()) {
    if (!key.value.show) continue;
    EXPECT_EQ(key.value.show(again), key.value.show(spec)) << key.names[0];
  }
}

TEST(SpecKeys, NoKeyIsAlsoAForeignOne) {
  for (const SpecKey& key : SpecKeys()) {
    for (const std::string& name : key.names) EXPECT_FALSE(FindForeignKey(name)) << name;
  }
}

// Every number has limits; the fault for a number beyond them names the key.
TEST(SpecKeys, NumbersOutOfRangeAreFaults) {
  int n_keys = 0;
  for (const SpecKey& key : SpecKeys()) {
    const size_t from = key.value.allowed.find(" from ");
    if (from == std::string::npos) continue;
    ++n_keys;
    std::istringstream range(key.value.allowed.substr(from + 6));
    double min = 0;
    double max = 0;
    std::string to;
    range >> min >> to >> max;
    for (const std::string& value :
         {ShowNumber(min - 2), ShowNumber(2 * max + 1), std::string("nan"), std::string("1e999"),
          std::string("x"), std::string()}) {
      const std::string faults = FaultsOf(kMinimal, {key.names[0] + "=" + value});
      EXPECT_NE(faults.find(key.names[0] + ": must be "), std::string::npos)
          << key.names[0] << "=" << value << "\n"
          << faults;
    }
  }
  EXPECT_GT(n_keys, 50);
}

TEST(SpecKeys, KeysThatTheOptimiserDoesNotReadGiveANote) {
  const auto notes = [](const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& note : Parse(kMinimal, words).notes) text += note + "\n";
    return text;
  };
  EXPECT_EQ(notes({"opt_type=sgd", "train.optimizer.momentum=0.9", "adam_weight_decay=0"}), "");
  EXPECT_EQ(notes({"opt_type=adamw", "adam_b1=0.5", "adam_weight_decay=0.2"}), "");
  EXPECT_EQ(notes({"opt_type=lion", "adam_b2=0.98", "adamw_mask=[bias]"}), "");
  EXPECT_EQ(notes({"opt_type=adamw", "muon_beta=0.95"}), "") << "the default";
  EXPECT_EQ(
      notes({"opt_type=adamw", "train.optimizer.momentum=0.9"}),
      "train.optimizer.momentum has no effect: it applies to train.optimizer.type sgd only\n");
  EXPECT_NE(notes({"opt_type=adam", "adam_weight_decay=0.2"}).find("weight_decay has no effect"),
            std::string::npos);
  EXPECT_NE(notes({"opt_type=adafactor", "adam_b2=0.9"}).find("b2 has no effect"),
            std::string::npos);
  EXPECT_NE(notes({"lr_schedule_type=constant", "warmup_steps=10"}).find("warmup_steps has no"),
            std::string::npos);
  EXPECT_NE(notes({"wsd_decay_steps_fraction=0.5"}).find("wsd_decay_fraction has no"),
            std::string::npos);
}

TEST(SpecKeys, AKeyIsExplainedWithItsValueAndOrigin) {
  const TrainSpec spec = Parse(kMinimal + "adam_b1: 0.5\n", {"eval_steps=3", "hardware=tpu"});
  const std::string b1 = ExplainKey("adam_b1", &spec);
  for (const char* part : {"train.optimizer.b1: ", "a number from 0 to 1", "default  0.9",
                           "adam_b1", "value    0.5 (spec:4)"}) {
    EXPECT_NE(b1.find(part), std::string::npos) << part << " in " << b1;
  }
  EXPECT_NE(ExplainKey("train.eval_steps", &spec).find("3 (command line)"), std::string::npos);
  EXPECT_NE(ExplainKey("run_name", &spec).find("run (default)"), std::string::npos);
  EXPECT_EQ(ExplainKey("run_name", nullptr).find("  value "), std::string::npos);
  EXPECT_NE(ExplainKey("hardware", nullptr).find("without effect here"), std::string::npos);
  EXPECT_THROW(ExplainKey("adam_b4", nullptr), Error);

  const std::string shown = ShowSpec(spec);
  EXPECT_NE(shown.find("# hardware has no effect"), std::string::npos);
  for (const SpecKey& key : SpecKeys()) {
    EXPECT_EQ(shown.find("\n" + key.names[0] + ":") != std::string::npos ||
                  shown.starts_with(key.names[0] + ":"),
              key.value.show != nullptr)
        << key.names[0];
    EXPECT_NE(ListKeys().find(key.names[0]), std::string::npos);
  }
}

TEST(SpecKeys, EveryKeyHasItsEntryInTheReadme) {
  std::ifstream file(tests::SourceDir() / "training" / "README.md");
  std::ostringstream text;
  text << file.rdbuf();
  std::string missing;
  for (const SpecKey& key : SpecKeys()) {
    if (text.str().find(MarkdownEntry(key) + "\n") == std::string::npos) {
      missing += MarkdownEntry(key) + "\n";
    }
  }
  EXPECT_TRUE(missing.empty()) << "training/README.md must have these entries:\n" << missing;
}

TEST(TrainSpec, RematPoliciesHaveMaxTextsNames) {
  EXPECT_EQ(Parse(kMinimal).train.remat.policy, RematPolicy::kNone);
  EXPECT_EQ(Parse(kMinimal + "remat_policy: full\n").train.remat.policy, RematPolicy::kFull);
  EXPECT_EQ(Parse(kMinimal, {"train.remat=save_qkv_proj"}).train.remat.policy,
            RematPolicy::kSaveQkvProj);
  const TrainSpec every = Parse(kMinimal, {"train.remat=every_k", "train.remat_every=4"});
  EXPECT_EQ(every.train.remat.policy, RematPolicy::kEveryK);
  EXPECT_EQ(every.train.remat.every, 4);

  const std::string faults = FaultsOf(kMinimal, {"remat_policy=minimal_offloaded"});
  for (const std::string_view name : RematPolicyNames()) {
    EXPECT_NE(faults.find(name), std::string::npos) << faults;
  }
  EXPECT_NE(FaultsOf(kMinimal, {"train.remat=auto"}).find("memory_max_bytes"), std::string::npos);
  EXPECT_EQ(FaultsOf(kMinimal, {"train.remat=auto", "train.remat_max_bytes=1e9"}), "");
}

TEST(TrainSpec, SayingWhatAdapterAsksForOne) {
  const std::string base = kMinimal + "load_parameters_path: base\n";
  EXPECT_FALSE(Parse(base).lora.enable);
  const LoraOptions lora =
      Parse(base +
            "lora: {rank: 8, alpha: 4, use_rslora: true, match: full, init: he_uniform,\n"
            "  module_path: '.*mlp.*'}\n")
          .lora;
  EXPECT_TRUE(lora.enable);
  EXPECT_EQ(lora.rank, 8);
  EXPECT_EQ(lora.alpha, 4);
  EXPECT_TRUE(lora.rank_stabilized);
  EXPECT_TRUE(lora.full_match);
  EXPECT_EQ(lora.init, LoraInit::kHeUniform);
  EXPECT_EQ(lora.module_path, ".*mlp.*");
  EXPECT_TRUE(Parse(base + "lora: {enable: true}\n").lora.enable);
  EXPECT_FALSE(Parse(base + "lora: {enable: false, rank: 8}\n").lora.enable);
  EXPECT_TRUE(Parse(base, {"lora.lora_rank=4"}).lora.enable);
}

TEST(TrainSpec, AnAdapterNeedsABaseThatStaysAsItIs) {
  EXPECT_NE(FaultsOf(kMinimal + "lora: {rank: 8}\n").find("model.load_parameters_path"),
            std::string::npos);
  const std::string base = kMinimal + "load_parameters_path: base\nlora: {rank: 8}\n";
  EXPECT_NE(FaultsOf(base + "model: {trainable: [mlp]}\n").find("model.trainable"),
            std::string::npos);
  for (const char* fault :
       {"lora.rank=0", "lora.rank=5000", "lora.alpha=0", "lora.alpha=x", "lora.match=some",
        "lora.init=zero", "lora.dropout=1", "lora.base_dtype=q3", "lora.targets=[q]"}) {
    const std::string key = std::string(fault).substr(0, std::string(fault).find('='));
    const std::string other = kMinimal + "load_parameters_path: base\n";
    EXPECT_NE(FaultsOf(other, {fault}).find(key), std::string::npos) << fault;
  }
}

TEST(TrainSpec, TheBaseOfAnAdapterIsHeldInWhatIsAskedFor) {
  const std::string lora = kMinimal + "model.load_parameters_path: base\n";
  EXPECT_EQ(Parse(lora + "lora.rank: 2\n").lora.base, LoraBase::kAuto);
  EXPECT_EQ(Parse(lora + "lora.base_dtype: int4\n").lora.base, LoraBase::kInt4);
  EXPECT_EQ(Parse(lora + "lora.lora_weight_qtype: int8\nlora.lora_tile_size: 32\n").lora.base,
            LoraBase::kInt8);
  EXPECT_EQ(Parse(lora + "lora.base_dtype: f32\ndtype: float32\n").lora.base, LoraBase::kF32);
  EXPECT_DOUBLE_EQ(Parse(lora + "lora.lora_dropout: 0.05\n").lora.dropout, 0.05);

  EXPECT_NE(FaultsOf(lora + "lora.base_dtype: nf4\n").find("use int4"), std::string::npos);
  EXPECT_NE(FaultsOf(lora + "lora.lora_tile_size: 64\n").find("must be 32"), std::string::npos);
  EXPECT_NE(
      FaultsOf(lora + "lora.base_dtype: f32\n").find("f32 weights need precision.compute f32"),
      std::string::npos);
  EXPECT_NE(FaultsOf(lora + "lora.base_dtype: int4\ndtype: float32\n")
                .find("need precision.compute bf16"),
            std::string::npos);
}

TEST(TrainSpec, GuardsHaveMaxTextsSwitches) {
  const std::string both = kMinimal + "abort_on_nan_loss: true\nabort_on_inf_loss: true\n";
  EXPECT_EQ(Parse(kMinimal).train.on_nan, OnNan::kAbort);
  EXPECT_EQ(Parse(both).train.on_nan, OnNan::kAbort);
  EXPECT_EQ(Parse(both + "train: {on_nan: rollback}\n").train.on_nan, OnNan::kRollback);
  EXPECT_EQ(Parse("train: {on_nan: rollback}\n" + both).train.on_nan, OnNan::kRollback);
  EXPECT_EQ(Parse(kMinimal + "abort_on_nan_loss: false\n").train.on_nan, OnNan::kSkip);
  const TrainSpec spec = Parse(kMinimal +
                               "skip_step_on_spikes: true\nskip_step_interval: 64\n"
                               "skip_step_scaling_factor: 4\n");
  EXPECT_TRUE(spec.train.spikes.enabled);
  EXPECT_EQ(spec.train.spikes.window, 64);
  EXPECT_EQ(spec.train.spikes.factor, 4);
}

TEST(TrainSpec, SchedulesHaveMaxTextsNames) {
  const ScheduleSpec wsd = Parse(kMinimal +
                                 "lr_schedule_type: wsd\nwsd_decay_steps_fraction: 0.2\n"
                                 "wsd_decay_style: cosine\nlearning_rate_final_fraction: 0\n")
                               .train.schedule;
  EXPECT_EQ(wsd.kind, ScheduleKind::kWsd);
  EXPECT_EQ(wsd.schedule_steps, 10);
  EXPECT_EQ(DecaySteps(wsd), 2);
  EXPECT_EQ(wsd.decay_style, DecayStyle::kCosine);
  EXPECT_NE(FaultsOf(kMinimal + "lr_schedule_type: wsd\nwarmup_steps: 10\n")
                .find("warm-up and decay together take 11 steps, more than schedule_steps 10"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem::training
