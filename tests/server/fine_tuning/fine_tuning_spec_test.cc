#include "server/fine_tuning/fine_tuning_spec.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "training/spec/spec.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

TrainingData Data(int64_t examples, int64_t longest = 100) {
  TrainingData data;
  data.examples = data.samples = examples;
  data.longest = longest;
  data.lengths.assign(static_cast<size_t>(examples), static_cast<int32_t>(longest));
  return data;
}
TrainingBase Base() {
  TrainingBase base;
  base.id = "base";
  base.path = "/models/base";
  base.max_model_len = 4096;
  return base;
}

FineTuningRequest Request(FineTuningMethod method = FineTuningMethod::kSupervised) {
  FineTuningRequest request;
  request.model = "base";
  request.training_file = "file-1";
  request.method = method;
  return request;
}

FineTuningPlan Plan(const FineTuningRequest& request, const TrainingData& data = Data(12),
                    const TrainingBase& base = Base()) {
  return PlanFineTuning(request, base, data, 99);
}
Json SpecOf(const FineTuningRequest& request, const TrainingData& data = Data(12),
            const TrainingBase& base = Base(), const TrainingFiles& files = {"/data/train", {}}) {
  const Json spec = TrainSpecOf(Plan(request, data, base), base, files);
  // Every written spec must parse.
  EXPECT_NO_THROW(training::ParseTrainSpec(spec.dump(), "spec", {})) << spec;
  return spec;
}

TEST(FineTuningSpec, AutoFollowsTheSizeOfTheFile) {
  struct Size {
    int64_t examples, epochs, batch;
  };
  for (const Size& size : {Size{10, 3, 1}, Size{32, 3, 1}, Size{33, 3, 2}, Size{3000, 3, 8},
                           Size{3001, 2, 8}, Size{10000, 2, 8}, Size{10001, 1, 8}}) {
    const FineTuningPlan plan = Plan(Request(), Data(size.examples));
    EXPECT_EQ(plan.request.hyperparameters.n_epochs, size.epochs) << size.examples;
    EXPECT_EQ(plan.request.hyperparameters.batch_size, size.batch) << size.examples;
    EXPECT_EQ(plan.request.hyperparameters.learning_rate_multiplier, 1);
    EXPECT_FALSE(plan.request.hyperparameters.beta);
    EXPECT_EQ(plan.request.seed, 99);
  }
  EXPECT_EQ(Plan(Request(FineTuningMethod::kDpo)).request.hyperparameters.beta, 0.1);
}

TEST(FineTuningSpec, WhatIsGivenIsKept) {
  FineTuningRequest request = Request();
  request.seed = 5;
  request.hyperparameters.n_epochs = 7;
  request.hyperparameters.batch_size = 5;
  request.hyperparameters.learning_rate_multiplier = 0.5;
  const FineTuningPlan plan = Plan(request);
  EXPECT_EQ(plan.request.seed, 5);
  EXPECT_EQ(plan.steps_per_epoch, 3);
  EXPECT_EQ(plan.steps, 17);  // 84 examples, five a step
  EXPECT_EQ(SpecOf(request)["data"]["num_epoch"], 7);
  EXPECT_EQ(SpecOf(request)["train"]["per_device_batch_size"], 5);
  EXPECT_DOUBLE_EQ(SpecOf(request)["train"]["learning_rate"], 1e-4);
}

TEST(FineTuningSpec, MaxStepsOnlyShortens) {
  FineTuningRequest request = Request();
  request.hyperparameters.max_steps = 4;
  EXPECT_EQ(Plan(request).steps, 4);
  request.hyperparameters.max_steps = 4000;
  EXPECT_EQ(Plan(request).steps, 36);
}

TEST(FineTuningSpec, PiecesOfWhatIsSplitCountAsExamples) {
  FineTuningRequest request = Request();
  request.hyperparameters.seq_len = 64;
  request.hyperparameters.n_epochs = 1;
  EXPECT_EQ(Plan(request, Data(12, 130)).steps, 12);
  request.hyperparameters.over_length = "split";
  EXPECT_EQ(Plan(request, Data(12, 130)).steps, 36);  // 64 + 64 + 1
  EXPECT_EQ(Plan(request, Data(12, 129)).steps, 24);
}

TEST(FineTuningSpec, RowsAreAsLongAsTheLongestExample) {
  EXPECT_EQ(Plan(Request()).row_tokens, 112);
  EXPECT_EQ(Plan(Request(), Data(12, 5000)).row_tokens, 2048);
  EXPECT_EQ(Plan(Request(), Data(12, 0)).row_tokens, 2048);  // unknown number of tokens
  TrainingBase small = Base();
  small.max_model_len = 256;
  EXPECT_EQ(Plan(Request(), Data(12, 5000), small).row_tokens, 256);
  FineTuningRequest request = Request();
  request.hyperparameters.seq_len = 4096;
  EXPECT_EQ(Plan(request, Data(12, 5000)).row_tokens, 4096);
  request.hyperparameters.seq_len = 4097;
  EXPECT_THROW(Plan(request), Error);
}

TEST(FineTuningSpec, EachMethodHasItsLearningRate) {
  const auto rate = [](FineTuningMethod method, bool lora) {
    FineTuningRequest request = Request(method);
    if (!lora) request.hyperparameters.lora.reset();
    return SpecOf(request)["train"]["learning_rate"].get<double>();
  };
  EXPECT_DOUBLE_EQ(rate(FineTuningMethod::kSupervised, true), 2e-4);
  EXPECT_DOUBLE_EQ(rate(FineTuningMethod::kSupervised, false), 2e-5);
  EXPECT_DOUBLE_EQ(rate(FineTuningMethod::kDpo, true), 2e-5);
  EXPECT_DOUBLE_EQ(rate(FineTuningMethod::kDpo, false), 2e-6);
}

TEST(FineTuningSpec, TheSpecSaysWhatTheRequestSays) {
  FineTuningRequest request = Request();
  FineTuningHyperparameters& chosen = request.hyperparameters;
  chosen.lora = FineTuningLora{.rank = 4,
                               .alpha = 8,
                               .dropout = 0.1,
                               .target_modules = {"q", "up"},
                               .use_dora = true,
                               .modules_to_save = {"lm_head"}};
  chosen.over_length = "drop";
  chosen.warmup_ratio = 0.25;
  chosen.weight_decay = 0.5;
  chosen.grad_clip = 2;
  chosen.schedule = "cosine";
  chosen.checkpoint_every = 3;
  const Json spec = SpecOf(request, Data(12), Base(), {"/data/train", "/data/eval"});
  EXPECT_EQ(spec["kind"], "train.sft");
  EXPECT_EQ(spec["model"]["load_parameters_path"], "/models/base");
  EXPECT_EQ(spec["model"]["init_seed"], 99);
  EXPECT_EQ(spec["data"]["seed"], 99);
  EXPECT_EQ(spec["data"]["train"], "/data/train");
  EXPECT_EQ(spec["data"]["eval"], "/data/eval");
  EXPECT_EQ(spec["data"]["format"], "messages");
  EXPECT_EQ(spec["data"]["packing"], "none");
  EXPECT_EQ(spec["data"]["overflow"], "drop");
  EXPECT_EQ(spec["lora"]["rank"], 4);
  EXPECT_EQ(spec["lora"]["alpha"], 8);
  EXPECT_EQ(spec["lora"]["dropout"], 0.1);
  EXPECT_EQ(spec["lora"]["module_path"], "\\.(q_proj|up_proj)$");
  EXPECT_EQ(spec["lora"]["use_dora"], true);
  EXPECT_EQ(spec["lora"]["modules_to_save"], Json{"lm_head"});
  EXPECT_EQ(spec["train"]["schedule"]["type"], "cosine");
  EXPECT_EQ(spec["train"]["schedule"]["warmup_fraction"], 0.25);
  EXPECT_EQ(spec["train"]["optimizer"]["weight_decay"], 0.5);
  EXPECT_EQ(spec["train"]["gradient_clipping_threshold"], 2);
  EXPECT_EQ(spec["checkpoint"]["period"], 3);
  EXPECT_EQ(spec["checkpoint"]["export_every"], 3);
  EXPECT_EQ(spec["checkpoint"]["export_epochs"], true);
  EXPECT_EQ(spec["checkpoint"]["export_best"], false);
}

TEST(FineTuningSpec, ByItselfTheStateIsSavedEveryEpoch) {
  const Json spec = SpecOf(Request(), Data(12));
  EXPECT_EQ(spec["checkpoint"]["period"], 12);
  EXPECT_FALSE(spec["checkpoint"].contains("export_every"));
  EXPECT_FALSE(spec["lora"].contains("module_path"));  // default: every linear layer
  FineTuningRequest full = Request();
  full.hyperparameters.lora.reset();
  EXPECT_FALSE(SpecOf(full).contains("lora"));
}

TEST(FineTuningSpec, PairsAreOfDpo) {
  FineTuningRequest request = Request(FineTuningMethod::kDpo);
  request.hyperparameters.beta = 0.3;
  const Json spec = SpecOf(request);
  EXPECT_EQ(spec["kind"], "train.dpo");
  EXPECT_EQ(spec["data"]["format"], "openai_preference");
  EXPECT_EQ(spec["dpo"]["beta"], 0.3);
  EXPECT_EQ(spec["data"]["overflow"], "truncate_left");
}

TEST(FineTuningSpec, TheNameOfAnUploadDecidesItsContainer) {
  EXPECT_EQ(ContainerOfUpload("rows.CSV"), "csv");
  EXPECT_EQ(ContainerOfUpload("train.parquet"), "parquet");
  EXPECT_EQ(ContainerOfUpload("a.csv.jsonl"), "json");
  EXPECT_EQ(ContainerOfUpload("csv"), "json");
}

TEST(FineTuningSpec, RowsOtherThanOpenAisBecomeChats) {
  TrainingFiles files{"/data/train", {}};
  files.training_container = "csv";
  TrainingBase base = Base();
  base.has_chat_template = true;

  const Json csv = SpecOf(Request(), Data(12), base, files);

  EXPECT_EQ(csv["data"]["container"], "csv");
  EXPECT_EQ(csv["data"]["format"], "auto");
  EXPECT_EQ(csv["data"]["apply_template"], "always");
  EXPECT_FALSE(csv["data"].contains("eval_container"));
  FineTuningRequest request = Request();
  request.hyperparameters.format = "alpaca";
  EXPECT_EQ(SpecOf(request, Data(12), base)["data"]["format"], "alpaca");
  EXPECT_FALSE(SpecOf(Request(), Data(12), base)["data"].contains("apply_template"));
  // Without a template, prompts stay plain.
  EXPECT_FALSE(SpecOf(Request(), Data(12), Base(), files)["data"].contains("apply_template"));
}

TEST(FineTuningSpec, SamplesUseTheRenderedPrompts) {
  FineTuningRequest request = Request();
  request.hyperparameters.samples = FineTuningSamples{.every = 5, .prompts = {"Hi"}};
  FineTuningPlan plan = Plan(request);
  EXPECT_FALSE(TrainSpecOf(plan, Base(), {"/data/train", {}})["train"].contains("sample"));

  plan.sample_prompts = {"<user>Hi<assistant>"};
  const Json spec = TrainSpecOf(plan, Base(), {"/data/train", {}});

  EXPECT_NO_THROW(training::ParseTrainSpec(spec.dump(), "spec", {})) << spec;
  EXPECT_EQ(spec["train"]["sample"]["every"], 5);
  EXPECT_EQ(spec["train"]["sample"]["prompts"][0], "<user>Hi<assistant>");
  EXPECT_EQ(HyperparametersJson(plan.request)["samples"]["prompts"][0], "Hi");
}

TEST(FineTuningSpec, AnAdapterGoesOnInItsOwnShape) {
  TrainingBase base = Base();
  base.adapter_path = "/models/adapter";
  const Json spec = SpecOf(Request(), Data(12), base);
  EXPECT_EQ(spec["lora"]["load_path"], "/models/adapter");
  EXPECT_FALSE(spec["lora"].contains("rank"));
  FineTuningRequest full = Request();
  full.hyperparameters.lora.reset();
  EXPECT_THROW(Plan(full, Data(12), base), Error);
}

TEST(FineTuningSpec, HyperparametersAreShownStandardOnesFirst) {
  FineTuningRequest request = Request(FineTuningMethod::kDpo);
  EXPECT_EQ(HyperparametersJson(request).dump(),
            R"({"n_epochs":"auto","batch_size":"auto","learning_rate_multiplier":"auto",)"
            R"("beta":"auto","lora":{"rank":8,"alpha":16.0,"dropout":0.0},)"
            R"("over_length":"truncate_left","schedule":"linear"})");
  request = Request();
  FineTuningHyperparameters& chosen = request.hyperparameters;
  chosen.lora.reset();
  chosen.max_steps = 3;
  chosen.seq_len = 64;
  chosen.warmup_ratio = 0.5;
  chosen.weight_decay = 0.25;
  chosen.grad_clip = 1;
  chosen.checkpoint_every = 2;
  EXPECT_EQ(HyperparametersJson(Plan(request).request).dump(),
            R"({"n_epochs":3,"batch_size":1,"learning_rate_multiplier":1.0,"max_steps":3,)"
            R"("seq_len":64,"lora":false,"over_length":"truncate_left","schedule":"linear",)"
            R"("warmup_ratio":0.5,"weight_decay":0.25,"grad_clip":1.0,"checkpoint_every":2})");
}

}  // namespace
}  // namespace tandem::server
