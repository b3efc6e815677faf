#include <optional>
#include <string>

#include "tests/server/jobs/job_supervisor_fixture.h"

namespace tandem::server {
namespace {

// Jobs that the server's own process does: their life is in the store, whoever lives it.

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
  // Children go their own way meanwhile.
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

}  // namespace
}  // namespace tandem::server
