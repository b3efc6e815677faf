#include "server/wire/fine_tuning_request.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPlace = "method.supervised.hyperparameters.";

FineTuningRequest Parse(const std::string& more) {
  return ParseFineTuningRequest(
      Json::parse(R"({"model": "m", "training_file": "file-1")" + more + "}"));
}
FineTuningHyperparameters Supervised(const std::string& fields) {
  return Parse(R"(, "method": {"type": "supervised", "supervised": {"hyperparameters": {)" +
               fields + "}}}")
      .hyperparameters;
}
FineTuningHyperparameters Dpo(const std::string& fields) {
  return Parse(R"(, "method": {"type": "dpo", "dpo": {"hyperparameters": {)" + fields + "}}}")
      .hyperparameters;
}

void ExpectRefused(const std::function<void()>& parse, const std::string& param,
                   const std::string& reason, const std::string& about) {
  SCOPED_TRACE(about);
  try {
    parse();
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.param(), param);
    EXPECT_EQ(error.reason(), reason) << error.what();
  }
}

TEST(FineTuningRequest, NeedsAModelAndAFile) {
  const FineTuningRequest request = Parse("");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.training_file, "file-1");
  ExpectRefused([] { ParseFineTuningRequest(Json::parse(R"({"training_file": "f"})")); }, "model",
                "missing_required_parameter", "no model");
  ExpectRefused([] { ParseFineTuningRequest(Json::parse(R"({"model": "m"})")); }, "training_file",
                "missing_required_parameter", "no file");
}

TEST(FineTuningRequest, DefaultsAreTheContracts) {
  const FineTuningRequest request = Parse("");
  EXPECT_EQ(request.method, FineTuningMethod::kSupervised);
  EXPECT_FALSE(request.validation_file || request.suffix || request.seed);
  EXPECT_TRUE(request.metadata.empty());
  EXPECT_FALSE(request.dry_run);
  const FineTuningHyperparameters& chosen = request.hyperparameters;
  EXPECT_FALSE(chosen.n_epochs || chosen.batch_size || chosen.learning_rate_multiplier);
  EXPECT_FALSE(chosen.beta || chosen.max_steps || chosen.seq_len || chosen.checkpoint_every);
  EXPECT_FALSE(chosen.warmup_ratio || chosen.weight_decay || chosen.grad_clip);
  ASSERT_TRUE(chosen.lora);
  EXPECT_EQ(chosen.lora->rank, 8);
  EXPECT_EQ(chosen.lora->alpha, 16);
  EXPECT_EQ(chosen.lora->dropout, 0);
  EXPECT_TRUE(chosen.lora->target_modules.empty());
  EXPECT_EQ(chosen.over_length, "truncate_left");
  EXPECT_EQ(chosen.schedule, "linear");
}

TEST(FineTuningRequest, EveryFieldIsRead) {
  const FineTuningRequest request = Parse(
      R"(, "validation_file": "file-2", "suffix": "a_B-9", "seed": 2147483647, "dry_run": true,
         "metadata": {"k": "v"}, "integrations": [], "strange": 1)");
  EXPECT_EQ(request.validation_file, "file-2");
  EXPECT_EQ(request.suffix, "a_B-9");
  EXPECT_EQ(request.seed, 2147483647);
  EXPECT_TRUE(request.dry_run);
  EXPECT_EQ(request.metadata, (std::vector<std::pair<std::string, std::string>>{{"k", "v"}}));
  EXPECT_EQ(request.ignored_params, std::vector<std::string>{"strange"});

  const FineTuningHyperparameters all = Supervised(
      R"("n_epochs": 50, "batch_size": 256, "learning_rate_multiplier": 1000, "max_steps": 7,
         "seq_len": 16, "lora": {"rank": 256, "alpha": 0.5, "dropout": 0.9,
         "target_modules": ["q", "down"], "use_dora": true, "modules_to_save": ["lm_head"]},
         "over_length": "drop", "warmup_ratio": 1,
         "weight_decay": 0.1, "grad_clip": 0, "schedule": "cosine", "checkpoint_every": 1)");
  EXPECT_EQ(all.n_epochs, 50);
  EXPECT_EQ(all.batch_size, 256);
  EXPECT_EQ(all.learning_rate_multiplier, 1000);
  EXPECT_EQ(all.max_steps, 7);
  EXPECT_EQ(all.seq_len, 16);
  ASSERT_TRUE(all.lora);
  EXPECT_EQ(all.lora->rank, 256);
  EXPECT_EQ(all.lora->alpha, 0.5);
  EXPECT_EQ(all.lora->dropout, 0.9);
  EXPECT_EQ(all.lora->target_modules, (std::vector<std::string>{"q", "down"}));
  EXPECT_TRUE(all.lora->use_dora);
  EXPECT_EQ(all.lora->modules_to_save, std::vector<std::string>{"lm_head"});
  EXPECT_EQ(all.over_length, "drop");
  EXPECT_EQ(all.warmup_ratio, 1);
  EXPECT_EQ(all.weight_decay, 0.1);
  EXPECT_EQ(all.grad_clip, 0);
  EXPECT_EQ(all.schedule, "cosine");
  EXPECT_EQ(all.checkpoint_every, 1);
}

TEST(FineTuningRequest, AutoAndNullLeaveTheChoiceOpen) {
  for (const char* value : {"\"auto\"", "null"}) {
    const std::string v = value;
    const FineTuningHyperparameters chosen =
        Dpo("\"n_epochs\": " + v + ", \"batch_size\": " + v + ", \"beta\": " + v +
            ", \"learning_rate_multiplier\": " + v);
    EXPECT_FALSE(chosen.n_epochs || chosen.batch_size || chosen.beta ||
                 chosen.learning_rate_multiplier);
  }
  ExpectRefused([] { Supervised(R"("max_steps": "auto")"); }, std::string(kPlace) + "max_steps",
                "invalid_type", "auto is of the standard ones");
}

TEST(FineTuningRequest, LoraMayBeASwitch) {
  EXPECT_FALSE(Supervised(R"("lora": false)").lora);
  EXPECT_TRUE(Supervised(R"("lora": true)").lora);
  EXPECT_EQ(Supervised(R"("lora": {"rank": 4})").lora->alpha, 16);
}

TEST(FineTuningRequest, EveryWayOfLongRowsIsKnown) {
  for (const char* word : {"error", "drop", "truncate_left", "split", "truncate"}) {
    EXPECT_EQ(Supervised(std::string("\"over_length\": \"") + word + "\"").over_length, word);
  }
  for (const char* word : {"error", "drop", "truncate_left"}) {
    EXPECT_EQ(Dpo(std::string("\"over_length\": \"") + word + "\"").over_length, word);
  }
  ExpectRefused([] { Dpo(R"("over_length": "split")"); }, "method.dpo.hyperparameters.over_length",
                "invalid_value", "a pair in two parts");
}

TEST(FineTuningRequest, WhatIsOutOfRangeIsRefusedByItsName) {
  struct Bad {
    const char* field;
    const char* param;
    const char* reason = "invalid_value";
  };
  const Bad bad[] = {
      {R"("n_epochs": 0)", "n_epochs"},
      {R"("n_epochs": 51)", "n_epochs"},
      {R"("n_epochs": 1.5)", "n_epochs", "invalid_type"},
      {R"("n_epochs": "3")", "n_epochs", "invalid_type"},
      {R"("batch_size": 0)", "batch_size"},
      {R"("batch_size": 257)", "batch_size"},
      {R"("learning_rate_multiplier": 0)", "learning_rate_multiplier"},
      {R"("learning_rate_multiplier": -1)", "learning_rate_multiplier"},
      {R"("learning_rate_multiplier": 1000.5)", "learning_rate_multiplier"},
      {R"("beta": 0.1)", "beta"},  // allowed for dpo only
      {R"("max_steps": 0)", "max_steps"},
      {R"("seq_len": 15)", "seq_len"},
      {R"("lora": 8)", "lora", "invalid_type"},
      {R"("lora": {"rank": 0})", "lora.rank"},
      {R"("lora": {"rank": 257})", "lora.rank"},
      {R"("lora": {"alpha": 0})", "lora.alpha"},
      {R"("lora": {"dropout": 1})", "lora.dropout"},
      {R"("lora": {"dropout": -0.1})", "lora.dropout"},
      {R"("lora": {"target_modules": []})", "lora.target_modules"},
      {R"("lora": {"use_dora": "yes"})", "lora.use_dora", "invalid_type"},
      {R"("lora": {"modules_to_save": "lm_head"})", "lora.modules_to_save", "invalid_type"},
      {R"("lora": {"modules_to_save": [""]})", "lora.modules_to_save"},
      {R"("lora": {"modules_to_save": [1]})", "lora.modules_to_save"},
      {R"("lora": {"target_modules": ["q", "lm_head"]})", "lora.target_modules"},
      {R"("lora": {"target_modules": [1]})", "lora.target_modules"},
      {R"("lora": {"r": 8})", "lora.r"},
      {R"("over_length": "cut")", "over_length"},
      {R"("over_length": 1)", "over_length", "invalid_type"},
      {R"("warmup_ratio": 1.1)", "warmup_ratio"},
      {R"("weight_decay": -0.1)", "weight_decay"},
      {R"("grad_clip": -1)", "grad_clip"},
      {R"("schedule": "step")", "schedule"},
      {R"("checkpoint_every": 0)", "checkpoint_every"},
      {R"("epochs": 3)", "epochs"},
  };
  for (const Bad& one : bad) {
    ExpectRefused([&] { Supervised(one.field); }, std::string(kPlace) + one.param, one.reason,
                  one.field);
  }
  for (const char* beta : {"0", "2.1", "-1"}) {
    ExpectRefused([&] { Dpo(std::string("\"beta\": ") + beta); }, "method.dpo.hyperparameters.beta",
                  "invalid_value", beta);
  }
  EXPECT_EQ(Dpo(R"("beta": 2)").beta, 2);
}

TEST(FineTuningRequest, FieldsOfTheRequestHaveTheirRangesToo) {
  struct Bad {
    const char* field;
    const char* param;
    const char* reason = "invalid_value";
  };
  const Bad bad[] = {
      {R"("suffix": "")", "suffix"},
      {R"("suffix": "a b")", "suffix"},
      {R"("suffix": "a:b")", "suffix"},
      {R"("seed": -1)", "seed"},
      {R"("seed": 2147483648)", "seed"},
      {R"("seed": 1.5)", "seed", "invalid_type"},
      {R"("metadata": {"k": 1})", "metadata.k", "invalid_type"},
      {R"("integrations": [{"type": "wandb"}])", "integrations", "unsupported_parameter"},
      {R"("validation_file": 1)", "validation_file", "invalid_type"},
      {R"("method": {"type": "reinforcement"})", "method", "unsupported_value"},
      {R"("method": {"supervised": {}})", "method.type", "missing_required_parameter"},
      {R"("method": {"type": "supervised", "dpo": {}})", "method.dpo"},
      {R"("method": {"type": "supervised", "supervised": {"n_epochs": 1}})",
       "method.supervised.n_epochs"},
      {R"("hyperparameters": {"n_epochs": 51})", "hyperparameters.n_epochs"},
      {R"("method": {"type": "supervised", "supervised": {"hyperparameters": {}}},
          "hyperparameters": {})",
       "hyperparameters"},
  };
  for (const Bad& one : bad) {
    ExpectRefused([&] { Parse(std::string(", ") + one.field); }, one.param, one.reason, one.field);
  }
  ExpectRefused([] { Parse(", \"suffix\": \"" + std::string(65, 'x') + "\""); }, "suffix",
                "invalid_value", "65 characters");
  EXPECT_EQ(Parse(", \"suffix\": \"" + std::string(64, 'x') + "\"").suffix->size(), 64u);
  Json many;
  for (int i = 0; i < 17; ++i) many["k" + std::to_string(i)] = "";
  ExpectRefused([&] { Parse(", \"metadata\": " + many.dump()); }, "metadata", "invalid_value",
                "17 pairs");
  many.erase("k16");
  EXPECT_EQ(Parse(", \"metadata\": " + many.dump()).metadata.size(), 16u);
  for (const auto& [key, value] : {std::pair(std::string(65, 'k'), std::string()),
                                   std::pair(std::string("k"), std::string(513, 'v'))}) {
    ExpectRefused(
        [&] {
          Parse(", \"metadata\": " + Json{{key, value}}.dump());
        },
        "metadata", "invalid_value", "too long");
  }
}

TEST(FineTuningRequest, ReadsFormatAndSamples) {
  const FineTuningRequest request = Parse(R"(, "hyperparameters": {"format": "auto",
      "samples": {"every": 5, "prompts": ["Hi", "Ho"], "max_tokens": 9}})");

  EXPECT_EQ(request.hyperparameters.format, "auto");
  ASSERT_TRUE(request.hyperparameters.samples);
  EXPECT_EQ(request.hyperparameters.samples->every, 5);
  EXPECT_EQ(request.hyperparameters.samples->prompts.size(), 2u);
  EXPECT_EQ(request.hyperparameters.samples->max_tokens, 9);
}

TEST(FineTuningRequest, RefusesAFormatOfTheOtherMethodAndUnboundedSamples) {
  const auto of = [](const std::string& field) { return ", \"hyperparameters\": {" + field + "}"; };
  ExpectRefused([&] { Parse(of(R"("format": "preference")")); }, "hyperparameters.format",
                "invalid_value", "pairs");
  ExpectRefused([&] { Parse(of(R"("format": 1)")); }, "hyperparameters.format", "invalid_type",
                "number");
  ExpectRefused([&] { Parse(of(R"("samples": {"prompts": ["a"]})")); },
                "hyperparameters.samples.every", "missing_required_parameter", "every");
  ExpectRefused([&] { Parse(of(R"("samples": {"every": 1})")); }, "hyperparameters.samples.prompts",
                "missing_required_parameter", "prompts");
  for (const char* prompts :
       {R"([])", R"([""])", R"([1])", R"(["a","a","a","a","a","a","a","a","a"])"}) {
    const std::string field = std::string(R"("samples": {"every": 1, "prompts": )") + prompts + "}";
    ExpectRefused([&] { Parse(of(field)); }, "hyperparameters.samples.prompts", "invalid_value",
                  prompts);
  }
  const std::string too_long(4097, 'x');
  ExpectRefused([&] { Parse(of(R"("samples": {"every": 1, "prompts": [")" + too_long + "\"]}")); },
                "hyperparameters.samples.prompts", "invalid_value", "4097 bytes");
}

TEST(FineTuningRequest, TheOldPlaceOfHyperparametersCounts) {
  EXPECT_EQ(Parse(R"(, "hyperparameters": {"n_epochs": 4})").hyperparameters.n_epochs, 4);
  const FineTuningRequest dpo =
      Parse(R"(, "method": {"type": "dpo"}, "hyperparameters": {"beta": 0.5})");
  EXPECT_EQ(dpo.method, FineTuningMethod::kDpo);
  EXPECT_EQ(dpo.hyperparameters.beta, 0.5);
}

}  // namespace
}  // namespace tandem::server
