#include "bench/load/load_summary.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "bench/measure/process_usage.h"
#include "engine/base/error.h"

namespace tandem::bench {
namespace {

using Outcome = RequestRecord::Outcome;

RequestRecord Answer(double due, double first, double last, double end, int64_t tokens) {
  RequestRecord record;
  record.outcome = Outcome::kOk;
  record.due_s = due;
  record.sent_s = due;
  record.first_s = first;
  record.last_s = last;
  record.end_s = end;
  record.asked_tokens = 5;
  record.pieces = tokens;
  record.has_usage = true;
  record.usage = {.prompt_tokens = 10, .completion_tokens = tokens, .cached_tokens = 4};
  return record;
}

TEST(Percentile, IsTheSmallestValueThatCoversTheFraction) {
  const std::vector<double> ten = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};

  EXPECT_EQ(Percentile(ten, 0.5), 5);
  EXPECT_EQ(Percentile(ten, 0.9), 9);
  EXPECT_EQ(Percentile(ten, 0.91), 10);
  EXPECT_EQ(Percentile(ten, 0.99), 10);
  EXPECT_EQ(Percentile(ten, 1), 10);
  EXPECT_EQ(Percentile({7}, 0.01), 7);
  EXPECT_EQ(Percentile({}, 0.5), 0);
}

TEST(LoadSummary, CountsWhatWasAnsweredAndTimesItFromWhenItWasDue) {
  LoadRun run;
  run.wall_s = 2;
  run.gaps_ms = {30, 10, 20};
  run.records = {Answer(0, 0.1, 0.5, 0.6, 5), Answer(0.5, 0.8, 1.6, 2, 3)};
  run.records[1].sent_s = 0.7;  // a late start must not shorten the latency

  const LoadSummary summary = Summarize(run);

  EXPECT_EQ(summary.ok, 2);
  EXPECT_EQ(summary.output_tokens, 8);
  EXPECT_EQ(summary.prompt_tokens, 20);
  EXPECT_EQ(summary.cached_tokens, 8);
  EXPECT_EQ(summary.other_length, 1);
  EXPECT_DOUBLE_EQ(summary.output_tokens_per_s, 4);
  EXPECT_DOUBLE_EQ(summary.requests_per_s, 1);
  EXPECT_NEAR(summary.first_token_ms.p50, 100, 1e-9);
  EXPECT_NEAR(summary.first_token_ms.max, 300, 1e-9);
  EXPECT_NEAR(summary.token_ms.p50, 100, 1e-9);  // 0.4 s for 4 tokens after the first
  EXPECT_NEAR(summary.token_ms.max, 400, 1e-9);
  EXPECT_NEAR(summary.answer_ms.max, 1500, 1e-9);
  EXPECT_EQ(summary.gap_ms.p50, 20);
}

TEST(LoadSummary, FailedAndAbortedRequestsCountAsThatAndNothingElse) {
  LoadRun run;
  run.wall_s = 1;
  for (int i = 0; i < 4; ++i) run.records.push_back(Answer(0, 0.1, 0.2, 0.3, 5));
  run.records[0].outcome = Outcome::kAborted;
  for (const size_t i : {1, 2}) {
    run.records[i].outcome = Outcome::kFailed;
    run.records[i].fault = "status 503";
    run.records[i].detail = "full " + std::to_string(i);
  }

  const LoadSummary summary = Summarize(run);

  EXPECT_EQ(summary.ok, 1);
  EXPECT_EQ(summary.aborted, 1);
  EXPECT_EQ(summary.failed, 2);
  EXPECT_EQ(summary.faults.at("status 503").count, 2);
  EXPECT_EQ(summary.faults.at("status 503").example, "full 1");
  EXPECT_EQ(summary.output_tokens, 5);
  EXPECT_EQ(summary.first_token_ms.n, 1);
}

TEST(LoadSummary, WithoutUsageThePiecesAreTheTokens) {
  LoadRun run;
  run.wall_s = 1;
  run.records = {Answer(0, 0.1, 0.2, 0.3, 5)};
  run.records[0].has_usage = false;
  run.records[0].pieces = 4;

  const LoadSummary summary = Summarize(run);

  EXPECT_EQ(summary.output_tokens, 4);
  EXPECT_EQ(summary.without_usage, 1);
}

TEST(LoadSummary, AnswersWithoutTextHaveNoFirstToken) {
  LoadRun run;
  run.wall_s = 1;
  run.records = {Answer(0, -1, -1, 0.3, 5)};

  const LoadSummary summary = Summarize(run);

  EXPECT_EQ(summary.first_token_ms.n, 0);
  EXPECT_EQ(summary.answer_ms.n, 1);
}

TEST(LoadSummary, JsonSurvivesWhatServersSay) {
  LoadRun run;
  run.records = {Answer(0, 0, 0, 0, 1)};
  run.records[0].outcome = Outcome::kFailed;
  run.records[0].fault = "status 500";
  run.records[0].detail = "\xff\"\n";

  const auto json = nlohmann::json::parse(ToJson(Summarize(run)));

  EXPECT_EQ(json["failed"], 1);
  EXPECT_EQ(json["faults"]["status 500"]["count"], 1);
  EXPECT_FALSE(json.contains("server_cpu_s"));
}

TEST(ProcessUsage, SeesThisProcessAtWork) {
  const ProcessUsage before = ReadProcessUsage(getpid());
  const double own = OwnCpuSeconds();
  while (OwnCpuSeconds() < own + 0.1) {
  }
  const ProcessUsage after = ReadProcessUsage(getpid());

  // The kernel counts CPU time in ticks of 10 ms.
  EXPECT_GE(after.cpu_s - before.cpu_s, 0.05);
  EXPECT_GT(after.rss_bytes, 1 << 20);
  EXPECT_GE(after.peak_rss_bytes, after.rss_bytes);
  LoadSummary summary;
  AddServerUsage(summary, before, after);
  ASSERT_FALSE(summary.server_thread_cpu_s.empty());
  EXPECT_GE(summary.server_thread_cpu_s[0], 0.05);
}

TEST(ProcessUsage, AProcessThatIsNotThereIsAFault) {
  EXPECT_THROW(ReadProcessUsage((1 << 22) + 1), Error);
}

}  // namespace
}  // namespace tandem::bench
