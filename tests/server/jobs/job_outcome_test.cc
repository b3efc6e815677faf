#include "server/jobs/job_outcome.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace tandem::server {
namespace {

using Kind = ExitStatus::Kind;
using Next = Outcome::Next;
using State = JobResult::State;

EndedRun Ended(Kind kind, int value, State state = State::kMissing) {
  EndedRun run;
  run.exit = {kind, value};
  run.result.state = state;
  run.result.error = {"from the result", "its_code"};
  run.last_log_lines = "the last words";
  return run;
}

TEST(JobOutcome, ResultDecidesWhateverTheExit) {
  EXPECT_EQ(DecideOutcome(Ended(Kind::kCode, 0, State::kSucceeded)).next, Next::kSucceed);
  EXPECT_EQ(DecideOutcome(Ended(Kind::kUnknown, 0, State::kSucceeded)).next, Next::kSucceed);
  EXPECT_EQ(DecideOutcome(Ended(Kind::kSignal, SIGKILL, State::kSucceeded)).next, Next::kSucceed);
  const Outcome failed = DecideOutcome(Ended(Kind::kCode, 0, State::kFailed));
  EXPECT_EQ(failed.next, Next::kFail);
  EXPECT_EQ(failed.error.message, "from the result");
  EXPECT_EQ(failed.error.code, "its_code");
}

TEST(JobOutcome, CancelRequestWinsEvenOverSuccess) {
  EndedRun run = Ended(Kind::kCode, 0, State::kSucceeded);
  run.cancel_requested = true;

  EXPECT_EQ(DecideOutcome(run).next, Next::kCancel);
}

TEST(JobOutcome, ExitCodesHaveTheirMeaning) {
  const auto code = [](int value) { return DecideOutcome(Ended(Kind::kCode, value)); };

  EXPECT_EQ(code(130).next, Next::kCancel);
  EXPECT_EQ(code(75).next, Next::kRestart);
  const struct {
    int value;
    const char* reason;
  } failures[] = {{0, "no_result"}, {1, "failed"},    {2, "usage"},
                  {65, "bad_data"}, {74, "io_error"}, {99, "failed"}};
  for (const auto& failure : failures) {
    const Outcome outcome = code(failure.value);
    EXPECT_EQ(outcome.next, Next::kFail) << failure.value;
    EXPECT_EQ(outcome.error.code, failure.reason) << failure.value;
    EXPECT_NE(outcome.error.message.find("the last words"), std::string::npos) << failure.value;
  }
}

TEST(JobOutcome, OnlySignalsFromOutsideAreWorthARestart) {
  for (const int number : {SIGKILL, SIGTERM, SIGINT, SIGHUP}) {
    EXPECT_EQ(DecideOutcome(Ended(Kind::kSignal, number)).next, Next::kRestart) << number;
  }
  for (const int number : {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE}) {
    const Outcome outcome = DecideOutcome(Ended(Kind::kSignal, number));
    EXPECT_EQ(outcome.next, Next::kFail) << number;
    EXPECT_EQ(outcome.error.code, "crashed") << number;
  }
}

TEST(JobOutcome, RestartsAreBounded) {
  EndedRun run = Ended(Kind::kUnknown, 0);
  run.max_restarts = 3;
  run.restarts = 2;
  EXPECT_EQ(DecideOutcome(run).next, Next::kRestart);

  run.restarts = 3;
  const Outcome outcome = DecideOutcome(run);

  EXPECT_EQ(outcome.next, Next::kFail);
  EXPECT_EQ(outcome.error.code, "interrupted");
  EXPECT_NE(outcome.error.message.find("3 restarts"), std::string::npos) << outcome.error.message;
}

TEST(JobOutcome, AKillAtEveryRestartSpeaksOfMemory) {
  EndedRun run = Ended(Kind::kSignal, SIGKILL);
  run.max_restarts = run.restarts = 3;
  EXPECT_NE(DecideOutcome(run).error.message.find("ran out of memory"), std::string::npos);

  run.exit.value = SIGHUP;
  EXPECT_EQ(DecideOutcome(run).error.message.find("memory"), std::string::npos);
}

}  // namespace
}  // namespace tandem::server
