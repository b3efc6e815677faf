// Models that are opened and planned, and the memory that an engine holds.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/chat/chat_template.h"
#include "engine/io/mapping_faults.h"
#include "engine/model/model.h"
#include "tests/engine/engine_fixture.h"

namespace tandem::engine {
namespace {

using tests::Answer;
using tests::Bits;
using tests::Start;

TEST_F(EngineTest, TooLittleMemoryNamesNumbersAndFlags) {
  options_.kv_cache_bytes = 1000;
  const LoadedModel model = Open();
  try {
    Engine engine(model, options_);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
    EXPECT_NE(std::string(error.what()).find("--max-model-len"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("256 tokens"), std::string::npos);
  }
}

TEST_F(EngineTest, OpenModelReadsGenerationConfig) {
  WriteFile("generation_config.json",
            R"({"eos_token_id": [256, 7], "temperature": 0.6, "top_p": 0.9, "top_k": 40})");

  const LoadedModel model = Open();

  EXPECT_EQ(model.end_tokens, (std::vector<TokenId>{7, 256}));
  EXPECT_FLOAT_EQ(model.default_sampling.temperature, 0.6f);
  EXPECT_FLOAT_EQ(model.default_sampling.top_p, 0.9f);
  EXPECT_EQ(model.default_sampling.top_k, 40);
}

TEST_F(EngineTest, BrokenGenerationConfigNamesFileAndField) {
  WriteFile("generation_config.json", R"({"eos_token_id": "end"})");
  try {
    (void)Open();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("generation_config.json"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("eos_token_id"), std::string::npos);
  }
}

TEST_F(EngineTest, UnusableChatTemplateLeavesTheModelUsable) {
  WriteFile("chat_template.jinja", "{% for m in messages %}");

  const LoadedModel model = Open();

  EXPECT_EQ(model.chat_template, nullptr);
  EXPECT_FALSE(model.chat_template_error.empty());
  EXPECT_NE(OpenModel(ModelDir::Open(path()), options_, "{{ bos_token }}").chat_template, nullptr);
}

TEST_F(EngineTest, FingerprintDependsOnWeightsAndDtype) {
  const LoadedModel a = Open();
  options_.dtype = DType::kF32;
  const LoadedModel b = Open();

  EXPECT_EQ(a.fingerprint.substr(0, 3), "fp_");
  EXPECT_EQ(b.fingerprint, Open().fingerprint);
  EXPECT_NE(a.fingerprint == b.fingerprint, a.weights_dtype != b.weights_dtype);
}

TEST_F(EngineTest, ModelWithoutTokenizerServesIds) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::remove(path() / name);
  }
  Engine engine(Open(), options_);

  const Answer answer = tests::Run(engine, Simple());

  EXPECT_EQ(engine.loaded().tokenizer, nullptr);
  EXPECT_EQ(answer.only().token_ids.size(), 8u);
  EXPECT_EQ(answer.only().text, "");
}

// ---- Memory, planned and used

TEST_F(EngineTest, WhatIsPlannedIsWhatIsTaken) {
  options_.kv_cache_bytes = 0;
  for (const BlockFormat block : {BlockFormat::kNone, BlockFormat::kInt8, BlockFormat::kInt4}) {
    for (const int64_t max_model_len : {0, 50}) {
      options_.block = block;
      options_.max_model_len = max_model_len;
      const MemoryPlan plan = PlanMemory(ModelDir::Open(path()), options_);
      for (const int64_t kv : {plan.least.kv, plan.most_kv}) {
        EngineOptions options = options_;
        options.kv_cache_bytes = kv;
        Engine engine(OpenModel(ModelDir::Open(path()), options, ""), options);

        EXPECT_EQ(engine.loaded().weight_bytes, plan.least.weights);
        EXPECT_EQ(engine.loaded().max_model_len, plan.max_model_len);
        EXPECT_EQ(engine.loaded().weights_dtype, plan.weights_dtype);
        EXPECT_EQ(engine.stats().scratch_bytes, plan.least.scratch);
        EXPECT_EQ(engine.stats().kv_bytes, kv);
      }
    }
  }
}

TEST_F(EngineTest, PlanningRefusesTheFilesThatOpeningRefuses) {
  WriteFile("config.json", R"({"architectures": ["NewForCausalLM"]})");

  EXPECT_THROW(PlanMemory(ModelDir::Open(path()), options_), Error);
}

TEST_F(EngineTest, LoadingEndsWhenItsProgressIsNotWanted) {
  int n_calls = 0;
  const auto give_up_at = [&](int call) {
    return [&n_calls, call](double) {
      if (++n_calls == call) throw Error(ErrorCode::kCancelled, "no");
    };
  };
  const tests::TemporaryDir cache;
  options_.cache_dir = cache.path();
  for (const int call : {1, 3}) {
    n_calls = 0;
    try {
      OpenModel(ModelDir::Open(path()), options_, "", give_up_at(call));
      ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCancelled);
    }
    EXPECT_EQ(n_calls, call);
  }
  EXPECT_NE(OpenModel(ModelDir::Open(path()), options_, "", give_up_at(0)).model, nullptr);
}

TEST_F(EngineTest, ATokenizerThatIsRefusedEndsTheLoadBeforeWeightsArePacked) {
  WriteFile("tokenizer.json", "{}");
  int n_calls = 0;
  EXPECT_THROW(OpenModel(ModelDir::Open(path()), options_, "", [&](double) { ++n_calls; }), Error);
  EXPECT_EQ(n_calls, 0);
}

TEST_F(EngineTest, EndAllEndsEveryRequestOnceAndTakesNoMore) {
  options_.max_seqs = 2;  // some run, some wait
  Engine engine(Open(), options_);
  Gate gate;
  std::vector<std::shared_ptr<tests::PendingAnswer>> pending = {
      gate.Start(engine, Simple(20, 200))};
  for (int i = 0; i < 5; ++i) pending.push_back(Start(engine, Simple(20, 200)));

  engine.EndAll("it has to go");
  gate.Open();

  for (const auto& each : pending) {
    const Answer answer = each->Wait();
    EXPECT_EQ(answer.terminal_events, 1);
    EXPECT_EQ(answer.end.outcome, RequestFinished::Outcome::kFailed);
    EXPECT_EQ(answer.end.code, ErrorCode::kUnavailable);
    EXPECT_EQ(answer.end.message, "it has to go");
    EXPECT_EQ(answer.end.reason, "shutting_down");
  }
  std::string reason;
  EXPECT_EQ(SubmitError(engine, Simple(), &reason), ErrorCode::kUnavailable);
  EXPECT_EQ(reason, "shutting_down");
}

TEST_F(EngineTest, PackedWeightsThatAreCutShortEndTheModelsRequestsAndNotTheProcess) {
  SurviveMappingFaults();
  options_.cache_dir = dir_.path() / "cache";
  options_.max_seqs = 2;  // some run, some wait
  LoadedModel loaded = Open();
  const std::filesystem::path packed = loaded.model->packed_path();
  ASSERT_FALSE(packed.empty());
  Engine engine(std::move(loaded), options_);
  EXPECT_FALSE(engine.has_failed());
  Gate gate;
  std::vector<std::shared_ptr<tests::PendingAnswer>> pending = {
      gate.Start(engine, Simple(20, 200))};
  for (int i = 0; i < 5; ++i) pending.push_back(Start(engine, Simple(20, 200)));

  std::filesystem::resize_file(packed, 4096);
  gate.Open();

  for (const auto& each : pending) {
    const Answer answer = each->Wait();
    EXPECT_EQ(answer.terminal_events, 1);
    EXPECT_EQ(answer.end.outcome, RequestFinished::Outcome::kFailed);
    EXPECT_EQ(answer.end.code, ErrorCode::kUnavailable);
    EXPECT_EQ(answer.end.reason, "model_damaged");
    if (each == pending.front()) {
      EXPECT_LE(answer.only().token_ids.size(), 1u) << "computed with zeros";
    } else {
      EXPECT_TRUE(answer.choices.empty()) << "computed with zeros";
    }
  }
  EXPECT_TRUE(engine.has_failed());
  std::string reason;
  EXPECT_EQ(SubmitError(engine, Simple(), &reason), ErrorCode::kUnavailable);
  EXPECT_EQ(reason, "model_damaged");
}

int64_t AnonymousKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8));
  }
  return -1;
}

// Conversations that nobody continues, on an engine that is never idle as a whole.
TEST_F(EngineTest, IdlePrefixesReturnTheirMemoryUnderLoad) {
  options_.idle_release = std::chrono::milliseconds(0);
  options_.prefix_idle = std::chrono::milliseconds(40);
  options_.max_seqs = 64;
  options_.kv_cache_bytes = 64 << 20;
  Engine engine(Open(), options_);
  const auto request_of = [&](int i) {
    GenerationRequest request = Simple(100, 20);
    request.prompt[0] = static_cast<TokenId>('A' + i % 26);
    request.prompt[1] = static_cast<TokenId>('A' + i / 26);
    return request;
  };
  std::vector<std::string> first;
  for (int i = 0; i < 32; ++i) first.push_back(Bits(tests::Run(engine, request_of(i))));
  // At least six full blocks of each of them. kv_cache_test counts the pages that return.
  while (engine.stats().idle_blocks_total < 32 * 6) tests::Run(engine, Simple(3, 2));
  EXPECT_EQ(engine.stats().idle_releases_total, 0);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(first[static_cast<size_t>(i)], Bits(tests::Run(engine, request_of(i)))) << i;
  }
}

TEST_F(EngineTest, AnIdleEngineReturnsTheMemoryOfABurstAndAnswersTheSameAfterwards) {
  options_.idle_release = std::chrono::milliseconds(1);
  options_.max_seqs = 64;
  options_.kv_cache_bytes = 64 << 20;
  Engine engine(Open(), options_);
  std::vector<std::shared_ptr<tests::PendingAnswer>> pending;
  for (int i = 0; i < 64; ++i) {
    GenerationRequest request = Simple(100, 20);
    request.prompt[0] = static_cast<TokenId>('A' + i % 26);
    request.prompt[1] = static_cast<TokenId>('A' + i / 26);
    pending.push_back(Start(engine, std::move(request)));
  }
  // The engine beats at least every second, and after the burst it is idle.
  std::string first;
  for (const auto& each : pending) first += Bits(each->Wait());
  while (engine.stats().idle_releases_total == 0) std::this_thread::yield();
  const int64_t released = engine.stats().idle_releases_total;
  const int64_t hits = engine.stats().prefix_hit_tokens_total;
  const int64_t after = AnonymousKilobytes();

  // A second burst takes memory again, so the release was real.
  std::string second;
  int64_t most = 0;
  for (int i = 0; i < 64; ++i) {
    GenerationRequest request = Simple(100, 20);
    request.prompt[0] = static_cast<TokenId>('A' + i % 26);
    request.prompt[1] = static_cast<TokenId>('A' + i / 26);
    pending[static_cast<size_t>(i)] = Start(engine, std::move(request));
  }
  for (const auto& each : pending) {
    second += Bits(each->Wait());
    most = std::max(most, AnonymousKilobytes());
  }
  EXPECT_EQ(first, second);
  EXPECT_EQ(engine.stats().prefix_hit_tokens_total, hits) << "prefixes outlived the release";
  EXPECT_GE(released, 1);
  EXPECT_GT(most, after);
}

}  // namespace
}  // namespace tandem::engine
