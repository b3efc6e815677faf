// Whole runs of models with experts: their losses, metrics, frozen routers and adapters.

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/model/adapter.h"
#include "engine/tensor/tensor.h"
#include "tests/support/model_harness.h"
#include "tests/training/tiny_run.h"

namespace tandem::training {
namespace {

constexpr const char* kExpertFamily = "qwen3_moe";

class ExpertsRunTest : public TinyRunTest {
 protected:
  ExpertsRunTest() : TinyRunTest(TinyExperts()) {}

  static bench::RandomModelSpec TinyExperts() {
    bench::RandomModelSpec model;
    model.config = bench::TinyModelConfig(kExpertFamily);
    model.with_tokenizer = true;
    return model;
  }

  TrainSpec Spec(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> words = {
        "load_parameters_path=" + (dir_.path() / "base").string(),
        "data.train=" + (dir_.path() / "train.txt").string(),
    };
    words.insert(words.end(), overrides.begin(), overrides.end());
    return ParseTrainSpec(
        "data: {max_target_length: 64, eos_token: \"<|endoftext|>\"}\n"
        "train: {steps: 12, per_device_batch_size: 2, learning_rate: 3e-3}\n"
        "resources: {threads: 1}\n",
        "spec", words);
  }

  // The values of a scalar, by step.
  std::vector<double> Scalars(const std::string& scalar, const std::string& name = "run") const {
    std::vector<double> values;
    for (const auto& line : Metrics(name)) {
      if (line.contains(scalar)) values.push_back(line[scalar]);
    }
    return values;
  }
};

TEST_F(ExpertsRunTest, EveryStepTellsTheLoadOfItsExperts) {
  Run(Spec({"steps=3"}));

  EXPECT_EQ(CountEvents("step", ", moe_lb_loss: "), 3);
  EXPECT_EQ(CountEvents("step", ", most_loaded_expert: "), 3);
  const auto top_k = static_cast<double>(TinyExperts().config.experts.router.top_k);
  for (const double loss : Scalars("learning/moe_lb_loss")) EXPECT_GT(loss, 0.9 * top_k);
  for (const double share : Scalars("learning/most_loaded_expert")) {
    EXPECT_GT(share, 0);
    EXPECT_LE(share, 1);
  }
  EXPECT_EQ(Scalars("learning/router_z_loss").size(), 3u);
}

TEST_F(ExpertsRunTest, TheLossesOnRoutersAreTrainedAndNotPartOfTheLoss) {
  const std::vector<std::string> constant = {"steps=30", "train.schedule.type=constant",
                                             "learning_rate=1e-2", "dtype=float32"};
  const auto with = [&](const std::string& factor) {
    std::vector<std::string> words = constant;
    words.push_back(factor);
    return words;
  };
  Run(Spec(constant), "plain");
  Run(Spec(with("router_aux_loss_coef=1")), "balanced");
  Run(Spec(with("train.router_z_loss=1")), "small");

  EXPECT_EQ(Losses("balanced").at(0), Losses("plain").at(0));
  EXPECT_LT(Scalars("learning/moe_lb_loss", "balanced").back(),
            Scalars("learning/moe_lb_loss", "plain").back());
  EXPECT_LT(Scalars("learning/router_z_loss", "small").back(),
            Scalars("learning/router_z_loss", "plain").back());
}

TEST_F(ExpertsRunTest, AStoppedRunGoesOnBitwise) {
  const TrainSpec spec =
      Spec({"gradient_accumulation_steps=2", "router_aux_loss_coef=0.01", "train.remat=full"});
  Run(spec, "whole");
  RunUntil(spec, "parts", 4);
  Run(spec, "parts");

  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
}

TEST_F(ExpertsRunTest, AFrozenRouterAloneDoesNotMove) {
  const TrainOutcome outcome =
      Run(Spec({"steps=2", "model.freeze_router=true", "learning_rate=1e-2", "dtype=float32"}));

  const auto before = engine::ModelDir::Open(dir_.path() / "base");
  const auto after = engine::ModelDir::Open(outcome.model_dir);
  const engine::FamilySpec& family = engine::FindFamilyByName(kExpertFamily);
  const engine::ModelConfig config = TinyExperts().config;
  const auto specs = family.list_weights(config);
  const std::vector<bool> routers = engine::RouterWeights(family, config, specs);
  ASSERT_EQ(std::count(routers.begin(), routers.end(), true), 1) << "the first layer is dense";
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name.find(".experts.") != std::string::npos) continue;  // some have no rows
    const auto* a = before.FindTensor(specs[i].name);
    const auto* b = after.FindTensor(specs[i].name);
    ASSERT_NE(a, nullptr) << specs[i].name;
    ASSERT_NE(b, nullptr) << specs[i].name;
    std::vector<float> was(static_cast<size_t>(a->elements())), is(was.size());
    engine::ConvertToF32(*a, was);
    engine::ConvertToF32(*b, is);
    EXPECT_EQ(is == was, routers[i]) << specs[i].name;
  }
}

TEST_F(ExpertsRunTest, AnAdapterOfExpertsAndRouterLearnsAndIsServed) {
  for (const std::string base : {"auto", "int4"}) {
    const std::string name = "run-" + base;
    const TrainOutcome outcome =
        Run(Spec({"steps=60", "lora.rank=4", "lora.module_path=mlp|self_attn", "learning_rate=2e-2",
                  "lora.dropout=0.1", "lora.base_dtype=" + base}),
            name);

    EXPECT_LT(Losses(name).at(59), Losses(name).at(0) - 1);
    const auto files = engine::LoraAdapter::Open(outcome.adapter_dir);
    const auto has = [&](const std::string& path) {
      return std::any_of(files.modules().begin(), files.modules().end(),
                         [&](const engine::LoraModule& module) { return module.path == path; });
    };
    EXPECT_TRUE(has("model.layers.1.mlp.experts.3.gate_proj"));
    EXPECT_TRUE(has("model.layers.1.mlp.gate"));
    tests::ModelHarness served(
        dir_.path() / "base",
        {.dtype = engine::DType::kBF16,
         .block = base == "int4" ? engine::BlockFormat::kInt4 : engine::BlockFormat::kNone});
    const std::vector<TokenId> tokens = {84, 104, 101, 32, 99};  // "The c"
    served.UseAdapter(served.LoadAdapter(outcome.adapter_dir));
    const std::vector<float> logits = served.Prefill(tokens, 0);
    const auto vocab = static_cast<size_t>(served.vocab_size());
    EXPECT_EQ(tests::ArgMax(std::span(logits).last(vocab)), 'a');
  }
}

TEST_F(ExpertsRunTest, WithoutAnExpressionRoutersGetNoAdapter) {
  const TrainOutcome outcome = Run(Spec({"steps=1", "lora.rank=2"}));

  const auto files = engine::LoraAdapter::Open(outcome.adapter_dir);
  for (const engine::LoraModule& module : files.modules()) {
    EXPECT_FALSE(module.path.ends_with("mlp.gate")) << module.path;
  }
  EXPECT_GT(files.modules().size(), 14u);
}

class DenseRunTest : public TinyRunTest {};

TEST_F(DenseRunTest, KeysOfRoutersAreRefusedForAModelWithoutExperts) {
  const std::vector<std::pair<std::string, std::string>> keys = {
      {"train.router_aux_loss=0.01", "train.router_aux_loss: family llama has no experts"},
      {"train.router_z_loss=0.01", "train.router_z_loss: family llama has no experts"},
      {"model.freeze_router=true", "model.freeze_router: family llama has no router"}};
  for (const auto& [key, refusal] : keys) {
    const TrainSpec spec = ParseTrainSpec(
        "data: {max_target_length: 64, eos_token: \"<|endoftext|>\"}\n"
        "train: {steps: 1, per_device_batch_size: 1}\n",
        "spec",
        std::vector<std::string>{"load_parameters_path=" + (dir_.path() / "base").string(),
                                 "data.train=" + (dir_.path() / "train.txt").string(), key});
    try {
      Run(spec);
      ADD_FAILURE() << key << " was not refused";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(refusal), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace tandem::training
