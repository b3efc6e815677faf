#include "server/jobs/prepared_runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "engine/base/error.h"
#include "tests/server/jobs/job_supervisor_fixture.h"

namespace tandem::server {
namespace {

class PreparedRunnerTest : public JobSupervisorTest {
 protected:
  void StartPrepared(PreparedJobRunner::Prepare prepare) {
    StartSupervisor([&](JobSupervisorOptions& options) {
      options.runner = std::make_shared<PreparedJobRunner>(
          std::make_shared<LocalJobRunner>(options.program), std::move(prepare));
    });
  }
};

TEST_F(PreparedRunnerTest, TheProcessBeginsAfterThePreparation) {
  Script({R"([ -e "$3/prepared" ] || exit 2)", kSucceed});
  StartPrepared([](const JobStart& job, const std::stop_token&) {
    WriteFile(job.dir / "prepared", job.id + job.verb);
  });
  const Job job = Submit();
  WaitForJob(job.id, [](const Job& now) { return now.status == JobStatus::kSucceeded; });
}

TEST_F(PreparedRunnerTest, AFailedPreparationFailsTheJobWithItsReason) {
  Script({kSucceed});
  StartPrepared([](const JobStart&, const std::stop_token&) {
    throw Error(ErrorCode::kDataLoss, "s3://bucket/files/x has 6 bytes, not 5");
  });
  const Job job = Submit();
  const Job failed =
      WaitForJob(job.id, [](const Job& now) { return now.status == JobStatus::kFailed; });
  EXPECT_NE(failed.error->message.find("has 6 bytes, not 5"), std::string::npos)
      << failed.error->message;
}

TEST_F(PreparedRunnerTest, AJobThatIsBeingPreparedCanBeCancelledAndPaused) {
  Script({kSucceed});
  std::atomic<int> n_begun = 0;
  std::atomic<bool> waits = true;
  StartPrepared([&](const JobStart&, const std::stop_token& stop) {
    ++n_begun;
    WaitFor([&] { return stop.stop_requested() || !waits; });
  });
  const Job cancelled = Submit();
  ASSERT_TRUE(WaitFor([&] { return n_begun == 1; }));
  supervisor_->Cancel(cancelled.id);
  WaitForJob(cancelled.id, [](const Job& now) { return now.status == JobStatus::kCancelled; });

  const Job paused = Submit();
  ASSERT_TRUE(WaitFor([&] { return n_begun == 2; }));
  supervisor_->Pause(paused.id);
  WaitForJob(paused.id, [](const Job& now) { return now.status == JobStatus::kPaused; });
  waits = false;
  supervisor_->Resume(paused.id);
  WaitForJob(paused.id, [](const Job& now) { return now.status == JobStatus::kSucceeded; });
}

TEST_F(PreparedRunnerTest, AStoppedServerLeavesThePreparationToTheNext) {
  Script({kSucceed});
  std::atomic<bool> has_begun = false;
  StartPrepared([&](const JobStart&, const std::stop_token& stop) {
    has_begun = true;
    WaitFor([&] { return stop.stop_requested(); });
  });
  const Job job = Submit();
  ASSERT_TRUE(WaitFor([&] { return has_begun.load(); }));
  supervisor_.reset();
  StartPrepared([](const JobStart&, const std::stop_token&) {});
  WaitForJob(job.id, [](const Job& now) { return now.status == JobStatus::kSucceeded; });
}

}  // namespace
}  // namespace tandem::server
