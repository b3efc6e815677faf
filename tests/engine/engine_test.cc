#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/chat/chat_template.h"
#include "engine/formats/model_dir.h"
#include "engine/io/mapping_faults.h"
#include "engine/model/model.h"
#include "tests/support/adapters.h"
#include "tests/support/engine_client.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

using tests::Answer;
using tests::Bits;
using tests::Start;

constexpr TokenId kEnd = 256;

// Stops the engine thread inside the first event of a request until the test opens the gate.
// Everything that the test posts meanwhile arrives before the next step. (Real sinks must not
// block.)
class Gate {
 public:
  // The request's events, gated.
  std::shared_ptr<tests::PendingAnswer> Start(Engine& engine, GenerationRequest request) {
    auto pending = std::make_shared<tests::PendingAnswer>();
    pending->id = engine.Submit(std::move(request), [this, pending](RequestId, GenerationEvent e) {
      if (!std::exchange(entered_once_, true)) {
        entered_.count_down();
        open_.wait();
      }
      pending->Take(std::move(e));
    });
    entered_.wait();
    return pending;
  }
  void Open() { open_.count_down(); }

 private:
  bool entered_once_ = false;  // engine thread only
  std::latch entered_{1};
  std::latch open_{1};
};

class EngineTest : public testing::Test {
 protected:
  EngineTest() {
    bench::RandomModelSpec spec;
    spec.config = bench::TinyLlamaConfig();
    spec.with_tokenizer = true;
    bench::WriteRandomModel(spec, path());
    options_.threads = 1;
    options_.max_seqs = 4;
    options_.kv_cache_bytes = 8 << 20;
  }

  std::filesystem::path path() const { return dir_.path() / "model"; }
  LoadedModel Open() const { return OpenModel(ModelDir::Open(path()), options_, ""); }
  void WriteFile(const std::string& name, const std::string& text) const {
    std::ofstream(path() / name) << text;
  }

  // Greedy, 8 tokens, default options.
  static GenerationRequest Simple(int64_t prompt_len = 20, int64_t max_new_tokens = 8) {
    GenerationRequest request;
    for (int64_t i = 0; i < prompt_len; ++i) {
      request.prompt.push_back(static_cast<TokenId>('a' + i % 26));
    }
    request.sampling.temperature = 0;
    request.stop.max_new_tokens = max_new_tokens;
    request.stop.ignore_end_tokens = true;
    return request;
  }

  // Makes every draw return `token`.
  static void Force(GenerationRequest& request, TokenId token) {
    request.sampling.logit_bias = {{token, 100.0f}};
  }

  static ErrorCode SubmitError(Engine& engine, GenerationRequest request, std::string* reason) {
    try {
      engine.Submit(std::move(request), [](RequestId, GenerationEvent) {});
    } catch (const Error& error) {
      *reason = error.reason();
      return error.code();
    }
    ADD_FAILURE() << "accepted";
    return ErrorCode::kInternal;
  }

  tests::TemporaryDir dir_;
  EngineOptions options_;
};

TEST_F(EngineTest, AnswersWithTokensUsageAndOneTerminalEvent) {
  Engine engine(Open(), options_);

  const Answer answer = tests::Run(engine, Simple());

  EXPECT_EQ(answer.terminal_events, 1);
  EXPECT_FALSE(answer.event_after_terminal);
  EXPECT_EQ(answer.end.outcome, RequestFinished::Outcome::kCompleted);
  EXPECT_EQ(answer.only().token_ids.size(), 8u);
  EXPECT_EQ(answer.only().finished->reason, ChoiceFinished::Reason::kLength);
  EXPECT_EQ(answer.only().finished->usage.prompt_tokens, 20);
  EXPECT_EQ(answer.only().finished->usage.completion_tokens, 8);
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.prompt_tokens_total, 20);
  EXPECT_EQ(stats.generation_tokens_total, 8);
  EXPECT_EQ(stats.requests_running, 0);
  EXPECT_EQ(stats.kv_blocks_used, 0);
}

TEST_F(EngineTest, TextOfDeltasIsTheTokensText) {
  Engine engine(Open(), options_);
  GenerationRequest request = Simple();
  Force(request, 'x');

  EXPECT_EQ(tests::Run(engine, request).only().text, "xxxxxxxx");
}

TEST_F(EngineTest, EndTokenStopsAndCounts) {
  Engine engine(Open(), options_);
  GenerationRequest request = Simple();
  request.stop.ignore_end_tokens = false;
  Force(request, kEnd);

  const Answer answer = tests::Run(engine, request);

  EXPECT_EQ(answer.only().finished->reason, ChoiceFinished::Reason::kStop);
  EXPECT_EQ(answer.only().finished->stop_token, kEnd);
  EXPECT_EQ(answer.only().finished->usage.completion_tokens, 1);
  EXPECT_EQ(answer.only().text, "");
}

TEST_F(EngineTest, ALimitedThoughtEndsWithItsMarkAndTheAnswerContinues) {
  Engine engine(Open(), options_);
  const std::vector<TokenId> free = tests::Run(engine, Simple()).only().token_ids;
  const TokenId close = 'z';
  ASSERT_EQ(std::count(free.begin(), free.begin() + 3, close), 0);
  GenerationRequest request = Simple();
  request.thought_limit = ThoughtLimit{.close = close, .max_tokens = 3, .is_open = true};
  request.n = 2;
  request.top_logprobs = 1;

  const Answer answer = tests::Run(engine, std::move(request));

  for (const auto& [index, choice] : answer.choices) {
    ASSERT_EQ(choice.token_ids.size(), 8u);
    EXPECT_TRUE(std::equal(free.begin(), free.begin() + 3, choice.token_ids.begin()));
    EXPECT_EQ(choice.token_ids[3], close);
    EXPECT_EQ(choice.logprobs[3].token, close);
  }
}

TEST_F(EngineTest, MinimumKeepsTheEndTokenFromBeingDrawn) {
  Engine engine(Open(), options_);
  GenerationRequest request = Simple();
  request.stop.ignore_end_tokens = false;
  request.stop.min_new_tokens = 3;
  request.sampling.logit_bias = {{kEnd, 100.0f}, {'y', 100.0f}};

  const Answer answer = tests::Run(engine, request);

  EXPECT_GE(answer.only().finished->usage.completion_tokens, 4);
  EXPECT_EQ(answer.only().text.substr(0, 3), "yyy");
}

TEST_F(EngineTest, NothingLeftToDrawFailsTheRequestAndNotTheLoop) {
  Engine engine(Open(), options_);
  GenerationRequest request = Simple();
  request.stop.ignore_end_tokens = false;
  request.stop.min_new_tokens = 2;
  Force(request, kEnd);

  const Answer answer = tests::Run(engine, request);

  EXPECT_EQ(answer.end.outcome, RequestFinished::Outcome::kFailed);
  EXPECT_EQ(answer.end.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(tests::Run(engine, Simple()).end.outcome, RequestFinished::Outcome::kCompleted);
}

TEST_F(EngineTest, ChoicesShareThePromptAndDrawTheirOwnTokens) {
  Engine engine(Open(), options_);
  GenerationRequest request = Simple();
  request.sampling.temperature = 1.5f;
  request.n = 9;  // more than max_seqs

  const Answer answer = tests::Run(engine, request);

  ASSERT_EQ(answer.choices.size(), 9u);
  EXPECT_NE(answer.choices.at(0).token_ids, answer.choices.at(1).token_ids);
  for (const auto& [index, choice] : answer.choices) {
    EXPECT_EQ(choice.finished->usage.completion_tokens, 8);
  }
  EXPECT_EQ(engine.stats().prompt_tokens_total, 20);
}

TEST_F(EngineTest, PromptScoresAreTheScoresOfGeneration) {
  Engine engine(Open(), options_);
  GenerationRequest request = Simple(100, 30);
  request.top_logprobs = 3;
  const Answer generated = tests::Run(engine, request);

  // As part of a prompt, the continuation gets the same scores as when it was drawn.
  GenerationRequest echo = request;
  const std::vector<TokenId>& tokens = generated.only().token_ids;
  echo.prompt.insert(echo.prompt.end(), tokens.begin(), tokens.end());
  echo.prompt_logprobs = 3;
  echo.stop.max_new_tokens = 0;
  const Answer scored = tests::Run(engine, echo);

  ASSERT_TRUE(scored.prompt_scores);
  EXPECT_TRUE(scored.scores_came_first);
  ASSERT_EQ(scored.prompt_scores->tokens.size(), 130u);
  for (size_t i = 0; i < 30; ++i) {
    const TokenLogprob& expected = generated.only().logprobs[i];
    const TokenLogprob& actual = scored.prompt_scores->tokens[100 + i];
    EXPECT_EQ(actual.token, expected.token);
    EXPECT_EQ(actual.logprob, expected.logprob);
    EXPECT_EQ(actual.rank, 1);
    EXPECT_EQ(actual.top, expected.top);
  }
  EXPECT_EQ(scored.only().finished->usage.completion_tokens, 0);
  EXPECT_EQ(scored.only().finished->usage.cached_tokens, 0);
}

TEST_F(EngineTest, LogprobsAreNormalised) {
  Engine engine(Open(), options_);
  GenerationRequest request = Simple(10, 1);
  request.top_logprobs = 272;

  const Answer answer = tests::Run(engine, request);

  double sum = 0;
  for (const auto& [token, logprob] : answer.only().logprobs.at(0).top) {
    sum += std::exp(static_cast<double>(logprob));
  }
  EXPECT_NEAR(sum, 1, 1e-5);
  EXPECT_EQ(answer.only().logprobs.at(0).top.size(), 272u);
}

TEST_F(EngineTest, LimitIsClampedToTheContext) {
  options_.max_model_len = 64;
  Engine engine(Open(), options_);

  const Answer answer = tests::Run(engine, Simple(60, 1000));

  EXPECT_EQ(answer.only().finished->usage.completion_tokens, 4);
  EXPECT_EQ(answer.only().finished->reason, ChoiceFinished::Reason::kLength);
}

TEST_F(EngineTest, UnusableRequestsAreRefused) {
  options_.max_model_len = 64;
  Engine engine(Open(), options_);
  std::string reason;

  EXPECT_EQ(SubmitError(engine, Simple(0), &reason), ErrorCode::kInvalidArgument);
  EXPECT_EQ(SubmitError(engine, Simple(64), &reason), ErrorCode::kInvalidArgument);
  EXPECT_EQ(reason, "context_length_exceeded");
  GenerationRequest out_of_range = Simple();
  out_of_range.prompt[3] = 272;
  EXPECT_EQ(SubmitError(engine, out_of_range, &reason), ErrorCode::kInvalidArgument);
  GenerationRequest bias = Simple();
  bias.sampling.logit_bias = {{-1, 1.0f}};
  EXPECT_EQ(SubmitError(engine, bias, &reason), ErrorCode::kInvalidArgument);
}

TEST_F(EngineTest, FullQueueRefuses) {
  options_.max_seqs = 1;
  options_.max_queue = 2;
  Engine engine(Open(), options_);
  Gate gate;
  std::vector<std::shared_ptr<tests::PendingAnswer>> pending;
  std::string reason;

  pending.push_back(gate.Start(engine, Simple()));
  pending.push_back(Start(engine, Simple()));
  pending.push_back(Start(engine, Simple()));

  EXPECT_EQ(SubmitError(engine, Simple(), &reason), ErrorCode::kUnavailable);
  EXPECT_EQ(reason, "server_overloaded");
  EXPECT_EQ(engine.stats().requests_waiting, 2);
  gate.Open();
  for (const auto& one : pending) EXPECT_EQ(one->Wait().terminal_events, 1);
  EXPECT_EQ(tests::Run(engine, Simple()).end.outcome, RequestFinished::Outcome::kCompleted);
}

TEST_F(EngineTest, StatsNameTheAdaptersThatRunAndWait) {
  tests::WriteRandomAdapter(path(), 4, 1, dir_.path() / "adapter");
  options_.max_seqs = 1;
  Engine engine(Open(), options_);
  const auto adapter = OpenAdapter(dir_.path() / "adapter", engine.loaded(), options_);
  const auto adapted = [&](const char* name) {
    GenerationRequest request = Simple();
    request.adapter = adapter;
    request.adapter_name = name;
    return request;
  };
  // Asks on the engine's own thread, so that each answer belongs to a known step.
  std::latch entered{1}, open{1}, ended{1};
  std::vector<EngineStats> seen;
  engine.Submit(adapted("one"), [&](RequestId, const GenerationEvent& event) {
    seen.push_back(engine.stats());
    if (seen.size() == 1) {
      entered.count_down();
      open.wait();
    }
    if (std::holds_alternative<RequestFinished>(event)) ended.count_down();
  });
  entered.wait();
  std::vector<std::shared_ptr<tests::PendingAnswer>> pending;
  for (const char* name : {"two", "three", "two"}) pending.push_back(Start(engine, adapted(name)));
  pending.push_back(Start(engine, Simple()));
  open.count_down();
  ended.wait();
  for (const auto& one : pending) one->Wait();
  using Names = std::vector<std::string>;

  EXPECT_EQ(seen[0].max_adapters, 1);
  EXPECT_EQ(seen[0].running_adapters, Names{"one"});
  EXPECT_EQ(seen[0].waiting_adapters, Names());
  EXPECT_EQ(seen[1].running_adapters, Names{"one"});
  EXPECT_EQ(seen[1].waiting_adapters, (Names{"three", "two"}));
  EXPECT_EQ(seen.back().running_adapters, Names()) << "its place is free, the next step fills it";
  tests::Run(engine, Simple());
  EXPECT_EQ(engine.stats().waiting_adapters, Names());
}

TEST_F(EngineTest, ChoicesOfARunningRequestWaitButAreNotQueued) {
  options_.max_seqs = 1;
  Engine engine(Open(), options_);
  Gate gate;
  GenerationRequest several = Simple();
  several.n = 4;
  std::vector<std::shared_ptr<tests::PendingAnswer>> pending;

  pending.push_back(gate.Start(engine, several));
  pending.push_back(Start(engine, several));

  EXPECT_EQ(engine.stats().requests_queued, 1);
  gate.Open();
  for (const auto& one : pending) EXPECT_EQ(one->Wait().terminal_events, 1);
  EXPECT_EQ(engine.stats().requests_queued, 0);
}

TEST_F(EngineTest, WhatAClientHasWaitingLeavesOthersTheirRoom) {
  options_.max_seqs = 1;
  Engine engine(Open(), options_);
  Gate gate;
  const auto of_client = [&](uint64_t client) {
    GenerationRequest request = Simple();
    request.client = client;
    return request;
  };
  std::vector<std::shared_ptr<tests::PendingAnswer>> pending;

  pending.push_back(gate.Start(engine, of_client(7)));  // has a slot, so it does not wait
  for (int i = 0; i < 3; ++i) pending.push_back(Start(engine, of_client(7)));

  EXPECT_EQ(engine.queue_room_of(7, 4), 1);
  EXPECT_EQ(engine.queue_room_of(7, 3), 0);
  EXPECT_EQ(engine.queue_room_of(7, 2), 0);
  EXPECT_EQ(engine.queue_room_of(8, 2), 2);
  pending.push_back(Start(engine, of_client(7), 4));
  try {
    pending.push_back(Start(engine, of_client(7), 4));
    FAIL() << "a fifth one waits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_EQ(error.reason(), "rate_limit_exceeded");
  }
  pending.push_back(Start(engine, of_client(8), 4));
  engine.Cancel(pending.back()->id);
  gate.Open();
  for (const auto& one : pending) EXPECT_EQ(one->Wait().terminal_events, 1);
  EXPECT_EQ(engine.queue_room_of(7, 2), 3);  // and the free slot
}

TEST_F(EngineTest, CancelEndsARunningAndAWaitingRequestBeforeTheNextStep) {
  options_.max_seqs = 1;
  Engine engine(Open(), options_);
  Gate gate;
  const auto running = gate.Start(engine, Simple(20, 200));
  const auto waiting = Start(engine, Simple(20, 200));

  engine.Cancel(waiting->id);
  engine.Cancel(running->id);
  engine.Cancel(running->id);
  gate.Open();

  for (const auto& one : {running, waiting}) {
    const Answer answer = one->Wait();
    EXPECT_EQ(answer.end.outcome, RequestFinished::Outcome::kCancelled);
    EXPECT_FALSE(answer.event_after_terminal);
  }
  EXPECT_EQ(running->Wait().only().token_ids.size(), 1u);
  EXPECT_EQ(engine.stats().kv_blocks_used, 0);
}

TEST_F(EngineTest, PausedRequestLetsOthersPassAndResumes) {
  options_.max_seqs = 1;
  Engine engine(Open(), options_);
  const Answer undisturbed = tests::Run(engine, Simple(20, 50));
  Gate gate;
  const auto slow = gate.Start(engine, Simple(20, 50));

  engine.SetPaused(slow->id, true);
  gate.Open();
  EXPECT_EQ(tests::Run(engine, Simple(20, 3)).only().token_ids.size(), 3u);
  EXPECT_FALSE(slow->done());
  engine.SetPaused(slow->id, false);

  EXPECT_EQ(slow->Wait().only().token_ids, undisturbed.only().token_ids);
}

TEST_F(EngineTest, PassedDeadlineFailsTheRequest) {
  Engine engine(Open(), options_);
  GenerationRequest request = Simple(20, 200);
  request.deadline = std::chrono::steady_clock::now() - std::chrono::seconds(1);

  const Answer answer = tests::Run(engine, request);

  EXPECT_EQ(answer.end.outcome, RequestFinished::Outcome::kFailed);
  EXPECT_EQ(answer.end.code, ErrorCode::kDeadlineExceeded);
}

TEST_F(EngineTest, DestructionCancelsWhatIsLeft) {
  std::vector<std::shared_ptr<tests::PendingAnswer>> pending;
  {
    Engine engine(Open(), options_);
    for (int i = 0; i < 8; ++i) pending.push_back(Start(engine, Simple(20, 200)));
    pending[0]->WaitForFirstDelta();
  }

  for (const auto& one : pending) {
    ASSERT_TRUE(one->done());
    EXPECT_EQ(one->Wait().terminal_events, 1);
  }
}

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
