#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/jobs/own_work.h"
#include "tests/server/jobs/job_supervisor_fixture.h"
#include "tests/server/jobs/run_sql.h"

namespace tandem::server {
namespace {

// Jobs that run in the server's own process: the store records them like those of children.

TEST_F(JobSupervisorTest, OwnWorkIsListedLoggedAndFollowedAsTheChildrens) {
  Script({kSucceed});
  StartSupervisor();
  const Job job = supervisor_->BeginOwn(JobType::kModelLoad, R"({"path":"a"})", nullptr);
  EXPECT_EQ(job.status, JobStatus::kQueued);

  supervisor_->StartOwn(job.id);
  supervisor_->ReportOwn(job.id, 0.5, "half");
  const Job half = WaitForJob(job.id, [](const Job& now) { return now.progress == 0.5; });
  EXPECT_EQ(half.status, JobStatus::kRunning);
  EXPECT_TRUE(half.started_at);
  // Children run on independently.
  WaitForEndOf(Submit(), JobStatus::kSucceeded);
  const Job ended = supervisor_->EndOwn(job.id, {JobStatus::kSucceeded, {}, R"({"model":"a"})"});

  EXPECT_EQ(ended.progress, 1);
  EXPECT_EQ(ended.result_json, R"({"model":"a"})");
  EXPECT_TRUE(ended.finished_at);
  EXPECT_EQ(WaitForEndOf(job, JobStatus::kSucceeded).request_json, R"({"path":"a"})");
  const JobLog log = supervisor_->ReadLog(job.id, 0, 1000);
  ASSERT_EQ(log.lines.lines.size(), 1u);
  EXPECT_EQ(log.lines.lines[0].text, "half");
  JobFilter filter;
  filter.type = JobType::kModelLoad;
  EXPECT_EQ(supervisor_->List(filter).jobs.size(), 1u);
  ExpectError(ErrorCode::kFailedPrecondition, {"job"}, [&] { supervisor_->Cancel(job.id); });
}

TEST_F(JobSupervisorTest, CancellingOwnWorkOnlyAsks) {
  StartSupervisor();
  int asked = 0;
  const Job load = supervisor_->BeginOwn(JobType::kModelLoad, "{}", [&] { ++asked; });
  const Job unload = supervisor_->BeginOwn(JobType::kModelUnload, "{}", nullptr);

  EXPECT_EQ(supervisor_->Cancel(load.id).status, JobStatus::kQueued);
  EXPECT_EQ(asked, 1);
  ExpectError(ErrorCode::kFailedPrecondition, {"job"}, [&] { supervisor_->Cancel(unload.id); });
  supervisor_->EndOwn(load.id, {JobStatus::kCancelled, {}, {}});

  EXPECT_EQ(supervisor_->Find(load.id)->status, JobStatus::kCancelled);
  EXPECT_EQ(supervisor_->Find(unload.id)->status, JobStatus::kQueued);
}

TEST_F(JobSupervisorTest, OwnWorkThatAServerLeftIsInterrupted) {
  Script({kSucceed});
  StartSupervisor();
  const Job queued = supervisor_->BeginOwn(JobType::kModelLoad, "{}", nullptr);
  const Job running = supervisor_->BeginOwn(JobType::kModelUnload, "{}", nullptr);
  supervisor_->StartOwn(running.id);

  supervisor_.reset();
  StartSupervisor();

  for (const std::string& id : {queued.id, running.id}) {
    const std::optional<Job> job = supervisor_->Find(id);
    ASSERT_TRUE(job);
    EXPECT_EQ(job->status, JobStatus::kFailed);
    ASSERT_TRUE(job->error);
    EXPECT_EQ(job->error->code, "interrupted");
  }
  WaitForEndOf(Submit(), JobStatus::kSucceeded);
}

TEST_F(JobSupervisorTest, OwnWorkAndTheChildrensDoNotWaitInOneQueue) {
  Script({kWaitForGo, kSucceed});
  StartSupervisor([](JobSupervisorOptions& options) { options.max_queued = 1; });
  const Job running = Submit();
  WaitForJob(running.id, [](const Job& job) { return job.status == JobStatus::kRunning; });
  std::vector<std::string> own;
  for (int i = 0; i < 3; ++i) {
    own.push_back(supervisor_->BeginOwn(JobType::kModelLoad, "{}", nullptr).id);
  }

  const Job queued = Submit();
  ExpectError(ErrorCode::kUnavailable, {"1 of 1"}, [&] { Submit(); });
  own.push_back(supervisor_->BeginOwn(JobType::kModelUnload, "{}", nullptr).id);

  Go(running);
  Go(queued);
  WaitForEndOf(queued, JobStatus::kSucceeded);
  for (const std::string& id : own) EXPECT_EQ(supervisor_->Find(id)->status, JobStatus::kQueued);
}

TEST_F(JobSupervisorTest, OwnWorkCancelledAtOnceIsAnsweredSo) {
  StartSupervisor();
  std::string id;
  id = supervisor_
           ->BeginOwn(JobType::kModelLoad, "{}",
                      [&] {
                        supervisor_->EndOwn(id, {JobStatus::kCancelled, {}, {}});
                      })
           .id;

  EXPECT_EQ(supervisor_->Cancel(id).status, JobStatus::kCancelled);
}

TEST_F(JobSupervisorTest, OwnWorkGoesOnWhereTheDiskRefusesAndIsRecordedLater) {
  StartSupervisor();
  const Job job = supervisor_->BeginOwn(JobType::kModelLoad, "{}", nullptr);
  RunSql(data_dir() / "tandem.db",
         "CREATE TRIGGER full BEFORE UPDATE ON jobs BEGIN SELECT RAISE(FAIL, 'full'); END");

  EXPECT_EQ(supervisor_->StartOwn(job.id).status, JobStatus::kRunning);
  supervisor_->ReportOwn(job.id, 0.5, "half");
  EXPECT_EQ(supervisor_->Find(job.id)->progress, 0.5);
  const Job ended = supervisor_->EndOwn(job.id, {JobStatus::kSucceeded, {}, R"({"model":"a"})"});

  EXPECT_EQ(ended.result_json, R"({"model":"a"})");
  EXPECT_EQ(supervisor_->Find(job.id)->status, JobStatus::kSucceeded);
  ExpectError(ErrorCode::kFailedPrecondition, {"job"}, [&] { supervisor_->Cancel(job.id); });
  const auto stored = [&] { return supervisor_->List({}).jobs.front().status; };
  EXPECT_EQ(stored(), JobStatus::kQueued);
  RunSql(data_dir() / "tandem.db", "DROP TRIGGER full");
  EXPECT_TRUE(WaitFor([&] { return stored() == JobStatus::kSucceeded; }));
}

TEST_F(JobSupervisorTest, WhatAStoppingServerRefusesSaysSo) {
  StartSupervisor();
  supervisor_->Stop(StopMode::kInterruptJobs);

  try {
    supervisor_->BeginOwn(JobType::kModelLoad, "{}", nullptr);
    FAIL() << "begun";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_EQ(error.reason(), "shutting_down");
  }
}

TEST_F(JobSupervisorTest, APublicationHoldsUpNobodyButItsJob) {
  Script({kSucceed});
  std::mutex mutex;
  std::condition_variable changed;
  bool may_end = false;
  std::string publishing;
  on_succeeded_ = [&](const Job& job) {
    std::unique_lock lock(mutex);
    if (!publishing.empty()) return;
    publishing = job.id;
    changed.notify_all();
    changed.wait(lock, [&] { return may_end; });
  };
  StartSupervisor([](JobSupervisorOptions& options) { options.max_running = 2; });
  const Job first = Submit();
  {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, kPatience, [&] { return !publishing.empty(); }));
  }

  WaitForEndOf(Submit(), JobStatus::kSucceeded);
  const Job own = supervisor_->BeginOwn(JobType::kModelLoad, "{}", nullptr);
  supervisor_->EndOwn(own.id, {});
  WaitForEndOf(own, JobStatus::kSucceeded);
  EXPECT_EQ(supervisor_->Find(first.id)->status, JobStatus::kRunning);
  ExpectError(ErrorCode::kFailedPrecondition, {"about to end"},
              [&] { supervisor_->Cancel(first.id); });
  {
    const std::lock_guard lock(mutex);
    may_end = true;
  }
  changed.notify_all();

  WaitForEndOf(first, JobStatus::kSucceeded);
}

TEST_F(JobSupervisorTest, APublicationThatTheEndOfTheServerCutShortIsTheNextOnes) {
  Script({kSucceed});
  bool stops = true;
  int published = 0;
  on_succeeded_ = [&](const Job&) {
    if (stops) throw Error(ErrorCode::kCancelled, "the server stops");
    ++published;
  };
  StartSupervisor();
  const Job job = Submit();
  EXPECT_TRUE(WaitFor([&] { return std::filesystem::exists(job.dir / "result.json"); }));
  supervisor_.reset();

  stops = false;
  StartSupervisor();

  WaitForEndOf(job, JobStatus::kSucceeded);
  EXPECT_EQ(published, 1);
}

// The store may count a living server as gone: its lease expires while the database is away.
TEST_F(JobSupervisorTest, AServerNeverFailsItsOwnUnfinishedWork) {
  JobStore store = JobStore::Open(data_dir());
  JobRecord record;
  record.job.id = "job-1";
  record.job.type = JobType::kModelLoad;
  record.job.request_json = "{}";
  store.Create(record);
  OwnWork own(store);
  own.Begin(record, nullptr);

  own.FailLeft();
  EXPECT_EQ(store.Find("job-1")->job.status, JobStatus::kQueued);

  OwnWork(store).FailLeft();  // of another server
  EXPECT_EQ(store.Find("job-1")->job.status, JobStatus::kFailed);
}

}  // namespace
}  // namespace tandem::server
