#include "server/jobs/job_supervisor.h"

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/jobs/job_supervisor_fixture.h"
#include "tests/support/full_disk.h"

namespace tandem::server {
namespace {

TEST_F(JobSupervisorTest, JobSucceedsWithItsResultAfterTheHookReturned) {
  Script({R"(echo '{"kind":"step","step":1,"total_steps":4}' > "$3/events.jsonl")", kSucceed});
  std::string status_in_hook;
  std::string result_in_hook;
  on_succeeded_ = [&](const Job& job) {
    status_in_hook = NameOf(supervisor_->Find(job.id)->status);
    result_in_hook = job.result_json.value_or("");
  };
  StartSupervisor();

  const Job submitted = Submit(R"({"steps":4})");
  const Job job = WaitForEndOf(submitted, JobStatus::kSucceeded);

  EXPECT_EQ(NameOf(submitted.status), "queued");
  EXPECT_EQ(status_in_hook, "running");
  EXPECT_EQ(result_in_hook, R"({"model_dir":"artifact"})");
  EXPECT_EQ(job.result_json, R"({"model_dir":"artifact"})");
  EXPECT_EQ(job.progress, 1);
  EXPECT_TRUE(job.started_at);
  EXPECT_TRUE(job.finished_at);
  EXPECT_FALSE(job.error);
  EXPECT_EQ(FileText(job.dir / "spec.json"), R"({"steps":4})");
  const auto json = nlohmann::json::parse(AdminJobJson(job));
  EXPECT_EQ(json["object"], "admin.job");
  EXPECT_EQ(json["status"], "succeeded");
  EXPECT_EQ(json["request"]["steps"], 4);
  EXPECT_EQ(json["result"]["model_dir"], "artifact");
  EXPECT_TRUE(json["error"].is_null());
}

TEST_F(JobSupervisorTest, JobsAndTheirStepsAreCounted) {
  Script({R"(echo '{"kind":"step","step":1,"total_steps":2}' > "$3/events.jsonl")",
          R"(echo '{"kind":"step","step":2,"total_steps":2}' >> "$3/events.jsonl")", kSucceed});
  StartSupervisor();
  EXPECT_TRUE(supervisor_->counts().empty());

  WaitForEndOf(Submit(), JobStatus::kSucceeded);
  WaitForEndOf(Submit(), JobStatus::kSucceeded);

  const JobCounts ended = {{{"train", "succeeded"}, 2}};
  EXPECT_TRUE(WaitFor([&] { return supervisor_->counts() == ended; }));
  EXPECT_EQ(supervisor_->training_figures().steps, 4);
  supervisor_.reset();
  StartSupervisor();
  EXPECT_EQ(supervisor_->counts(), ended);
}

TEST_F(JobSupervisorTest, ThrowingHookFailsTheJob) {
  Script({kSucceed});
  on_succeeded_ = [](const Job&) { throw std::runtime_error("the model does not load"); };
  StartSupervisor();

  const Job job = WaitForEndOf(Submit(), JobStatus::kFailed);

  EXPECT_EQ(job.error->code, "publish_failed");
  EXPECT_NE(job.error->message.find("the model does not load"), std::string::npos);
}

TEST_F(JobSupervisorTest, FailedResultIsTheJobsError) {
  Script({R"(echo '{"status":"failed","error":{"message":"bad loss","code":"nan"}}' > \)",
          R"(  "$3/result.json"; exit 1)"});
  StartSupervisor();

  const Job job = WaitForEndOf(Submit(), JobStatus::kFailed);

  EXPECT_EQ(job.error->message, "bad loss");
  EXPECT_EQ(job.error->code, "nan");
}

TEST_F(JobSupervisorTest, ExitWithoutResultQuotesTheLastOutput) {
  Script({"echo to-stdout", "echo to-stderr >&2", "exit 65"});
  StartSupervisor();

  const Job job = WaitForEndOf(Submit(), JobStatus::kFailed);

  EXPECT_EQ(job.error->code, "bad_data");
  EXPECT_NE(job.error->message.find("to-stdout | to-stderr"), std::string::npos)
      << job.error->message;
}

TEST_F(JobSupervisorTest, CrashIsNotRepeated) {
  Script({kCountRuns, "ulimit -c 0", "kill -SEGV $$"});
  StartSupervisor();

  const Job job = WaitForEndOf(Submit(), JobStatus::kFailed);

  EXPECT_EQ(job.error->code, "crashed");
  EXPECT_EQ(Runs(job), 1u);
}

TEST_F(JobSupervisorTest, Exit75IsResumedInTheSameDirectory) {
  Script(
      {kCountRuns, R"([ -e "$3/checkpoint" ] || { touch "$3/checkpoint"; exit 75; })", kSucceed});
  StartSupervisor();

  const Job job = WaitForEndOf(Submit(), JobStatus::kSucceeded);

  EXPECT_EQ(Runs(job), 2u);
  EXPECT_NE(FileText(job.dir / "log.txt").find("restart 1 of 3"), std::string::npos);
}

TEST_F(JobSupervisorTest, JobKilledAgainAndAgainFailsInTheEnd) {
  Script({kCountRuns, "echo last words", "kill -KILL $$"});
  StartSupervisor();

  const Job job = WaitForEndOf(Submit(), JobStatus::kFailed);

  EXPECT_EQ(Runs(job), 4u);  // the first and three restarts
  EXPECT_EQ(job.error->code, "interrupted");
  EXPECT_NE(job.error->message.find("last words"), std::string::npos) << job.error->message;
}

TEST_F(JobSupervisorTest, CheckpointBetweenInterruptionsStartsTheCountAnew) {
  Script({kCountRuns, R"(echo '{"kind":"checkpoint","step":1}' >> "$3/events.jsonl")",
          R"([ $(wc -l < "$3/runs") -ge 7 ] || exit 75)", kSucceed});
  StartSupervisor();

  const Job job = WaitForEndOf(Submit(), JobStatus::kSucceeded);

  EXPECT_EQ(Runs(job), 7u);
}

TEST_F(JobSupervisorTest, MissingProgramFailsTheJobAndNotTheServer) {
  StartSupervisor();

  const Job job = WaitForEndOf(Submit(), JobStatus::kFailed);

  EXPECT_EQ(job.error->code, "not_started");
  EXPECT_NE(job.error->message.find("script"), std::string::npos) << job.error->message;
}

TEST_F(JobSupervisorTest, JobsRunOneAtATimeInTheOrderOfSubmission) {
  Script({R"(echo begin >> "$3/../../order"; basename "$3" >> "$3/../../order")",
          R"(echo end >> "$3/../../order")", kSucceed});
  StartSupervisor();

  std::string expected;
  std::vector<Job> jobs;
  for (int i = 0; i < 4; ++i) jobs.push_back(Submit());
  for (const Job& job : jobs) {
    WaitForEndOf(job, JobStatus::kSucceeded);
    expected += "begin\n" + job.id + "\nend\n";
  }

  EXPECT_EQ(FileText(data_dir() / "order"), expected);
}

TEST_F(JobSupervisorTest, AsManyJobsRunAtOnceAsAllowed) {
  Script({R"(touch "$3/started")", kWaitForGo, kSucceed});
  StartSupervisor([](JobSupervisorOptions& options) { options.max_running = 2; });

  const Job first = Submit();
  const Job second = Submit();
  const Job third = Submit();
  WaitForFile(first, "started");
  WaitForFile(second, "started");

  EXPECT_EQ(NameOf(supervisor_->Find(third.id)->status), "queued");
  for (const Job& job : {first, second, third}) Go(job);
  for (const Job& job : {first, second, third}) WaitForEndOf(job, JobStatus::kSucceeded);
}

TEST_F(JobSupervisorTest, QueuedJobIsCancelledAtOnceAndNeverRuns) {
  Script({kCountRuns, kWaitForGo, kSucceed});
  StartSupervisor();
  const Job first = Submit();
  const Job second = Submit();
  WaitForFirstRun(first);

  const Job cancelled = supervisor_->Cancel(second.id);

  EXPECT_EQ(NameOf(cancelled.status), "cancelled");
  EXPECT_TRUE(cancelled.finished_at);
  Go(first);
  WaitForEndOf(first, JobStatus::kSucceeded);
  EXPECT_EQ(Runs(second), 0u);
}

TEST_F(JobSupervisorTest, RunningJobIsCancelledWhenItsProcessHasGone) {
  Script({R"(trap 'touch "$3/asked"; while [ ! -e "$3/go" ]; do sleep 0.01; done; exit 130' TERM)",
          R"(touch "$3/started"; while :; do sleep 0.01; done)"});
  StartSupervisor();
  const Job job = Submit();
  WaitForFile(job, "started");

  const Job asked = supervisor_->Cancel(job.id);

  EXPECT_EQ(NameOf(asked.status), "running");
  WaitForFile(job, "asked");
  EXPECT_EQ(NameOf(supervisor_->Find(job.id)->status), "running");
  EXPECT_EQ(NameOf(supervisor_->Cancel(job.id).status), "running");  // twice is once
  Go(job);
  WaitForEndOf(job, JobStatus::kCancelled);
}

TEST_F(JobSupervisorTest, PausedJobMakesRoomAndGoesOnInItsOldPlace) {
  Script({kCountRuns, kStopOnTerm, kWaitForGo, kSucceed});
  StartSupervisor();
  const Job first = Submit();
  const Job second = Submit();
  WaitForFirstRun(first);

  EXPECT_EQ(NameOf(supervisor_->Pause(first.id).status), "running");
  const Job paused =
      WaitForJob(first.id, [](const Job& job) { return job.status == JobStatus::kPaused; });

  WaitForFirstRun(second);  // the slot is free
  ExpectError(ErrorCode::kFailedPrecondition, {first.id, "paused"},
              [&] { supervisor_->Pause(first.id); });
  const Job third = Submit();
  EXPECT_EQ(NameOf(supervisor_->Pause(third.id).status), "paused");  // it has not started
  EXPECT_EQ(NameOf(supervisor_->Resume(first.id).status), "queued");
  EXPECT_EQ(NameOf(supervisor_->Resume(third.id).status), "queued");
  ExpectError(ErrorCode::kFailedPrecondition, {first.id, "queued"},
              [&] { supervisor_->Resume(first.id); });
  Go(second);
  WaitForEndOf(second, JobStatus::kSucceeded);
  Go(first);
  WaitForEndOf(first, JobStatus::kSucceeded);
  EXPECT_EQ(Runs(first), 2u);
  Go(third);
  WaitForEndOf(third, JobStatus::kSucceeded);
  // A pause is not one of the three allowed restarts.
  EXPECT_EQ(FileText(paused.dir / "log.txt").find("restart"), std::string::npos);
  ExpectError(ErrorCode::kFailedPrecondition, {first.id, "succeeded"},
              [&] { supervisor_->Pause(first.id); });
}

TEST_F(JobSupervisorTest, PausedJobStaysPausedUnderTheNextServerAndCanBeCancelled) {
  Script({kCountRuns, kStopOnTerm, kWaitForGo, kSucceed});
  StartSupervisor();
  const Job job = Submit();
  WaitForFirstRun(job);
  supervisor_->Pause(job.id);
  WaitForJob(job.id, [](const Job& each) { return each.status == JobStatus::kPaused; });

  supervisor_.reset();
  StartSupervisor();

  EXPECT_EQ(NameOf(supervisor_->Find(job.id)->status), "paused");
  EXPECT_EQ(NameOf(supervisor_->Cancel(job.id).status), "cancelled");
  ExpectError(ErrorCode::kFailedPrecondition, {job.id, "cancelled"},
              [&] { supervisor_->Resume(job.id); });
  EXPECT_EQ(Runs(job), 1u);
}

TEST_F(JobSupervisorTest, WhatACancelledJobHasLeftIsTakenAwayBeforeItsEndIsRead) {
  Script({kCountRuns, kStopOnTerm, kWaitForGo, kSucceed});
  std::mutex mutex;
  std::vector<std::string> told;
  on_cancelled_ = [&](const Job& job) {
    const std::lock_guard lock(mutex);
    told.push_back(job.id + " " + std::string(NameOf(supervisor_->Find(job.id)->status)));
  };
  StartSupervisor();
  const Job running = Submit();
  const Job queued = Submit();
  const Job paused = Submit();
  WaitForFirstRun(running);

  supervisor_->Cancel(queued.id);  // it has not started and has no output
  supervisor_->Cancel(running.id);
  WaitForEndOf(running, JobStatus::kCancelled);
  WaitForFirstRun(paused);
  supervisor_->Pause(paused.id);
  WaitForJob(paused.id, [](const Job& job) { return job.status == JobStatus::kPaused; });
  EXPECT_EQ(told, std::vector{running.id + " running"});
  supervisor_->Cancel(paused.id);

  EXPECT_EQ(told, (std::vector{running.id + " running", paused.id + " cancelled"}));
}

TEST_F(JobSupervisorTest, WhatAnInterruptedJobHasLeftStays) {
  Script({kCountRuns, kStopOnTerm, kWaitForGo, kSucceed});
  std::atomic<int> told = 0;
  on_cancelled_ = [&](const Job&) { ++told; };
  StartSupervisor();
  const Job job = Submit();
  WaitForFirstRun(job);

  supervisor_.reset();
  StartSupervisor();
  EXPECT_TRUE(WaitFor([&] { return Runs(job) == 2; }));
  supervisor_->Pause(job.id);
  WaitForJob(job.id, [](const Job& each) { return each.status == JobStatus::kPaused; });
  supervisor_->Resume(job.id);
  Go(job);
  WaitForEndOf(job, JobStatus::kSucceeded);

  EXPECT_EQ(told, 0);
}

TEST_F(JobSupervisorTest, CancelWinsOverPauseAndSoDoesTheEnd) {
  Script({R"(trap 'touch "$3/asked"; while [ ! -e "$3/go" ]; do sleep 0.01; done; exit 75' TERM)",
          R"(touch "$3/started"; while :; do sleep 0.01; done)"});
  StartSupervisor();
  const Job job = Submit();
  WaitForFile(job, "started");
  supervisor_->Pause(job.id);
  WaitForFile(job, "asked");
  ExpectError(ErrorCode::kFailedPrecondition, {job.id, "being paused"},
              [&] { supervisor_->Resume(job.id); });

  supervisor_->Cancel(job.id);

  ExpectError(ErrorCode::kFailedPrecondition, {job.id, "being cancelled"},
              [&] { supervisor_->Pause(job.id); });
  Go(job);
  WaitForEndOf(job, JobStatus::kCancelled);

  Script({R"(trap : TERM)", R"(touch "$3/started")", kWaitForGo, kSucceed});
  const Job ends = Submit();
  WaitForFile(ends, "started");
  supervisor_->Pause(ends.id);
  Go(ends);
  WaitForEndOf(ends, JobStatus::kSucceeded);
}

// If a server is killed while a job is being paused, the next server finishes the pause.
TEST_F(JobSupervisorTest, JobThatStoppedToBePausedWhileNoServerRanIsPaused) {
  Script({kCountRuns, R"(trap 'touch "$3/asked"' TERM)", kWaitForGo, "exit 75"});
  StartSupervisor([](JobSupervisorOptions& options) { options.poll_interval = milliseconds(5); });
  const Job job = Submit();
  WaitForFirstRun(job);
  supervisor_->Pause(job.id);
  WaitForFile(job, "asked");
  supervisor_->Stop(StopMode::kLeaveJobs);
  supervisor_.reset();
  Go(job);

  StartSupervisor();

  WaitForJob(job.id, [](const Job& each) { return each.status == JobStatus::kPaused; });
  EXPECT_EQ(Runs(job), 1u);
}

TEST_F(JobSupervisorTest, JobThatIgnoresSigtermIsKilledWithItsHelpers) {
  Script({"trap '' TERM", R"(sleep 1000 & echo $! > "$3/helper.tmp")",
          R"(mv "$3/helper.tmp" "$3/helper"; while :; do sleep 0.01; done)"});
  StartSupervisor([](JobSupervisorOptions& options) { options.cancel_grace = milliseconds(20); });
  const Job job = Submit();
  WaitForFile(job, "helper");

  supervisor_->Cancel(job.id);

  WaitForEndOf(job, JobStatus::kCancelled);
  const pid_t helper = std::stoi(FileText(job.dir / "helper"));
  EXPECT_TRUE(WaitFor([&] { return !IdentifyProcess(helper); }));
}

TEST_F(JobSupervisorTest, OnlyActiveJobsCanBeCancelled) {
  Script({kSucceed});
  StartSupervisor();
  const Job job = WaitForEndOf(Submit(), JobStatus::kSucceeded);

  ExpectError(ErrorCode::kFailedPrecondition, {job.id, "succeeded"},
              [&] { supervisor_->Cancel(job.id); });
  ExpectError(ErrorCode::kNotFound, {"job-nobody"}, [&] { supervisor_->Cancel("job-nobody"); });
  EXPECT_EQ(NameOf(supervisor_->Find(job.id)->status), "succeeded");
}

TEST_F(JobSupervisorTest, JobBeingPublishedCanNoLongerBeCancelled) {
  Script({kSucceed});
  on_succeeded_ = [&](const Job& job) {
    ExpectError(ErrorCode::kFailedPrecondition, {job.id}, [&] { supervisor_->Cancel(job.id); });
  };
  StartSupervisor();

  WaitForEndOf(Submit(), JobStatus::kSucceeded);
}

TEST_F(JobSupervisorTest, BadSubmissionsLeaveNothingBehind) {
  StartSupervisor([](JobSupervisorOptions& options) { options.max_queued = 0; });

  ExpectError(ErrorCode::kInvalidArgument, {"JSON object"}, [&] { Submit("[]"); });
  ExpectError(ErrorCode::kInvalidArgument, {"JSON object"},
              [&] { Submit("{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}"); });
  ExpectError(ErrorCode::kInvalidArgument, {"limit is 1048576"},
              [&] { Submit(std::string(2'000'000, ' ')); });
  ExpectError(ErrorCode::kUnsupported, {"model_load"},
              [&] { supervisor_->Submit(JobType::kModelLoad, "{}"); });
  ExpectError(ErrorCode::kUnavailable, {"queue of jobs is full"}, [&] { Submit(); });

  EXPECT_TRUE(supervisor_->List({}).jobs.empty());
  EXPECT_TRUE(engine::NamesIn(data_dir() / "jobs").empty());
}

TEST_F(JobSupervisorTest, ASubmissionOnAFullDiskIsInsufficientStorageAndLeavesNothing) {
  StartSupervisor();
  std::string reason;
  {
    const tests::FullDisk full;
    try {
      Submit();
    } catch (const Error& error) {
      reason = error.reason();
    }
  }
  EXPECT_EQ(reason, "insufficient_storage");
  EXPECT_TRUE(std::filesystem::is_empty(data_dir() / "jobs"));
}

TEST_F(JobSupervisorTest, ManyThreadsMaySubmitCancelAndReadAtOnce) {
  Script({kStopOnTerm, "echo hello", kSucceed});
  StartSupervisor([](JobSupervisorOptions& options) { options.max_running = 3; });
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::vector<Job> jobs;

  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 4; ++i) {
        const Job job = Submit();
        const JobSubscription subscription = supervisor_->Subscribe(job.id, [] {});
        supervisor_->ReadLog(job.id, 0, 1000);
        supervisor_->List({});
        if ((t + i) % 2 == 0) {
          try {
            supervisor_->Cancel(job.id);
          } catch (const Error& error) {
            EXPECT_EQ(error.reason(), "job_not_active");
          }
        }
        const std::lock_guard lock(mutex);
        jobs.push_back(job);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  for (const Job& job : jobs) EXPECT_NE(WaitForEnd(job.id).status, JobStatus::kFailed);
}

}  // namespace
}  // namespace tandem::server
