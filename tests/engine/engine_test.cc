#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/engine_fixture.h"

namespace tandem::engine {
namespace {

using tests::Answer;

constexpr TokenId kEnd = 256;

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

}  // namespace
}  // namespace tandem::engine
