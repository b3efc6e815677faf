// Requests that wait, are cancelled, pause or miss their deadline.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/engine_fixture.h"
#include "tests/support/adapters.h"
#include "tests/support/model_harness.h"

namespace tandem::engine {
namespace {

using tests::Answer;
using tests::Start;

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

}  // namespace
}  // namespace tandem::engine
