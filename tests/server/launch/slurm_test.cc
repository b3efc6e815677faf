#include "server/launch/slurm.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "server/launch/job_runners.h"
#include "tests/server/launch/fake_slurm.h"

namespace tandem::server {
namespace {

// The supervisor with a runner for a false Slurm. The program on the "machines" is a script that is
// called as `program launch job --dir DIR --verb train`, as `tandem launch job` is.
class SlurmTest : public JobSupervisorTest {
 protected:
  SlurmTest() : slurm_(dir_ / "slurm") {
    // Does what RunClusterJob does.
    WriteScript(
        dir_ / "machine",
        {"trap 'kill -TERM $child' TERM", "rm -f \"$4/exit.json\"",
         "'" + (dir_ / "script").string() +
             "' \"$6\" --job \"$4\" >> \"$4/log.txt\" 2>&1 & child=$!",
         "wait $child; code=$?", "while kill -0 $child 2>/dev/null; do wait $child; code=$?; done",
         "printf '{\"code\":%d}' $code > \"$4/exit.tmp\" && mv \"$4/exit.tmp\" \"$4/exit.json\"",
         "exit $code"});
  }

  void StartOnSlurm(std::vector<std::string> options = {}) {
    StartSupervisor([&](JobSupervisorOptions& change) {
      change.max_running = 4;
      change.runner = std::make_shared<ClusterRunner>(
          std::make_shared<SlurmCluster>(SlurmOptions{dir_ / "machine", std::move(options)}),
          milliseconds(5));
    });
  }

  FakeSlurm slurm_;
};

TEST_F(SlurmTest, AJobRunsThereAndItsResultComesBack) {
  Script({kCountRuns, "echo hello", kSucceed});
  StartOnSlurm({"--partition=long", "--account=a b"});

  const Job ended = WaitForEndOf(Submit(), JobStatus::kSucceeded);

  EXPECT_EQ(ended.result_json, R"({"model_dir":"artifact"})");
  EXPECT_EQ(Runs(ended), 1u);
  EXPECT_NE(FileText(ended.dir / "log.txt").find("submitted to Slurm as 1"), std::string::npos);
  EXPECT_NE(FileText(ended.dir / "log.txt").find("hello"), std::string::npos);
  EXPECT_NE(slurm_.calls().find("--partition=long --account=a b"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(ClusterFile(ended.dir)));
}

TEST_F(SlurmTest, AJobThatAsksForARestartIsSubmittedAgain) {
  Script({kCountRuns, "[ $(wc -l < \"$3/runs\") = 1 ] && exit 75", kSucceed});
  StartOnSlurm();

  const Job ended = WaitForEndOf(Submit(), JobStatus::kSucceeded);

  EXPECT_EQ(Runs(ended), 2u);
  EXPECT_NE(FileText(ended.dir / "log.txt").find("submitted to Slurm as 2"), std::string::npos);
}

TEST_F(SlurmTest, TheExitCodeOfTheMachineFailsTheJob) {
  Script({"echo bad rows; exit 65"});
  StartOnSlurm();

  const Job ended = WaitForEndOf(Submit(), JobStatus::kFailed);

  ASSERT_TRUE(ended.error);
  EXPECT_NE(ended.error->message.find("bad rows"), std::string::npos) << ended.error->message;
}

TEST_F(SlurmTest, CancellingEndsARunningJobAndLeavesNothing) {
  Script({kStopOnTerm, kCountRuns, kWaitForGo, kSucceed});
  StartOnSlurm();
  const Job job = Submit();
  WaitForFirstRun(job);

  supervisor_->Cancel(job.id);

  WaitForEndOf(job, JobStatus::kCancelled);
  EXPECT_TRUE(WaitFor([&] { return slurm_.n_left() == 0; }));
  EXPECT_NE(slurm_.calls().find("scancel --batch --signal=TERM 1"), std::string::npos);
}

TEST_F(SlurmTest, CancellingRemovesAWaitingJob) {
  slurm_.Set("hold");
  Script({kCountRuns, kSucceed});
  StartOnSlurm();
  const Job job = Submit();
  WaitForFile(job, "cluster.json");

  supervisor_->Cancel(job.id);

  WaitForEndOf(job, JobStatus::kCancelled);
  slurm_.Clear("hold");
  EXPECT_EQ(slurm_.n_left(), 0);
  EXPECT_EQ(Runs(job), 0u);
}

TEST_F(SlurmTest, PausingKeepsTheJobAndResumingSubmitsItAgain) {
  Script({kStopOnTerm, kCountRuns, kWaitForGo, kSucceed});
  StartOnSlurm();
  const Job job = Submit();
  WaitForFirstRun(job);

  supervisor_->Pause(job.id);
  WaitForJob(job.id, [](const Job& now) { return now.status == JobStatus::kPaused; });
  Go(job);
  supervisor_->Resume(job.id);

  WaitForEndOf(job, JobStatus::kSucceeded);
  EXPECT_EQ(Runs(job), 2u);
}

// A stopping server leaves the job to Slurm; the next one finds it, running or ended.
TEST_F(SlurmTest, TheNextServerFindsTheJobRunningOrEnded) {
  for (const bool ends_meanwhile : {false, true}) {
    Script({kCountRuns, kWaitForGo, kSucceed});
    StartOnSlurm();
    const Job job = Submit();
    WaitForFirstRun(job);

    supervisor_->Stop(StopMode::kInterruptJobs);
    supervisor_.reset();
    EXPECT_EQ(slurm_.n_left(), 1);
    if (ends_meanwhile) {
      Go(job);
      WaitForFile(job, "exit.json");
    }
    StartOnSlurm();
    if (!ends_meanwhile) Go(job);

    WaitForEndOf(job, JobStatus::kSucceeded);
    EXPECT_EQ(Runs(job), 1u);
    supervisor_.reset();
  }
}

// The server died between sbatch and its record.
TEST_F(SlurmTest, ASubmissionWithoutARecordIsFoundByItsName) {
  Script({kCountRuns, kWaitForGo, kSucceed});
  StartOnSlurm();
  const Job job = Submit();
  WaitForFirstRun(job);
  supervisor_->Stop(StopMode::kLeaveJobs);
  supervisor_.reset();
  std::filesystem::remove(ClusterFile(job.dir));

  StartOnSlurm();
  Go(job);

  WaitForEndOf(job, JobStatus::kSucceeded);
  EXPECT_EQ(Runs(job), 1u);
}

// Nothing says whether there is a run, so the server waits for an answer before it decides.
TEST_F(SlurmTest, AServerStartsWithoutTheControllerAndFindsItsJobLater) {
  for (const bool is_cancelled : {false, true}) {
    Script({kStopOnTerm, kCountRuns, kWaitForGo, kSucceed});
    StartOnSlurm();
    const Job job = Submit();
    WaitForFirstRun(job);
    supervisor_->Stop(StopMode::kLeaveJobs);
    supervisor_.reset();
    std::filesystem::remove(ClusterFile(job.dir));
    slurm_.Set("down");

    StartOnSlurm();
    const size_t before = slurm_.calls().size();
    EXPECT_TRUE(WaitFor([&] { return slurm_.calls().size() > before + 200; }));
    EXPECT_EQ(supervisor_->Find(job.id)->status, JobStatus::kRunning);
    if (is_cancelled) {
      supervisor_->Cancel(job.id);
    } else {
      Go(job);
    }
    slurm_.Clear("down");

    WaitForEndOf(job, is_cancelled ? JobStatus::kCancelled : JobStatus::kSucceeded);
    EXPECT_EQ(Runs(job), 1u);
    supervisor_.reset();
  }
}

TEST_F(SlurmTest, AnEndedRunThatSlurmStillListsIsNotTheNextRun) {
  for (const char* state : {"COMPLETING", "RUNNING"}) {
    slurm_.Set("linger", state);
    Script({kCountRuns, "[ $(wc -l < \"$3/runs\") = 1 ] && exit 75", kSucceed});
    StartOnSlurm();

    const Job ended = WaitForEndOf(Submit(), JobStatus::kSucceeded);

    EXPECT_EQ(Runs(ended), 2u) << state;
    EXPECT_NE(FileText(ended.dir / "log.txt").find("restart 1 of"), std::string::npos);
    EXPECT_EQ(FileText(ended.dir / "log.txt").find("restart 2 of"), std::string::npos) << state;
    slurm_.Clear("linger");
    supervisor_.reset();
  }
}

TEST_F(SlurmTest, ARunOnAnotherSchedulerIsNotTakenOver) {
  Script({kCountRuns, kWaitForGo, kSucceed});
  StartOnSlurm();
  const Job job = Submit();
  WaitForFirstRun(job);
  supervisor_->Stop(StopMode::kLeaveJobs);
  supervisor_.reset();
  const std::string record = FileText(ClusterFile(job.dir));
  WriteFile(ClusterFile(job.dir), R"({"cluster":"Kubernetes","id":"tandem-x"})");

  ExpectError(ErrorCode::kFailedPrecondition, {"runs on Kubernetes as tandem-x"},
              [&] { StartOnSlurm(); });

  WriteFile(ClusterFile(job.dir), record);
  StartOnSlurm();
  Go(job);
  WaitForEndOf(job, JobStatus::kSucceeded);
  EXPECT_EQ(Runs(job), 1u);
}

TEST_F(SlurmTest, OneQuestionIsAboutAllJobs) {
  Script({kCountRuns, kWaitForGo, kSucceed});
  StartOnSlurm();
  const std::vector<Job> jobs = {Submit(), Submit(), Submit()};
  for (const Job& job : jobs) WaitForFirstRun(job);
  std::vector<std::string> names;
  for (const Job& job : jobs) names.push_back("tandem-" + job.id);
  std::sort(names.begin(), names.end());

  EXPECT_TRUE(WaitFor([&] {
    return slurm_.calls().find("--name=" + names[0] + "," + names[1] + "," + names[2] + " ") !=
           std::string::npos;
  })) << slurm_.calls();

  for (const Job& job : jobs) Go(job);
  for (const Job& job : jobs) WaitForEndOf(job, JobStatus::kSucceeded);
}

TEST_F(SlurmTest, AControllerThatIsAwayEndsNoRunningJob) {
  Script({kCountRuns, kWaitForGo, kSucceed});
  StartOnSlurm();
  const Job job = Submit();
  WaitForFirstRun(job);

  slurm_.Set("down");
  const size_t before = slurm_.calls().size();
  EXPECT_TRUE(WaitFor([&] { return slurm_.calls().size() > before + 200; }));
  EXPECT_EQ(supervisor_->Find(job.id)->status, JobStatus::kRunning);
  slurm_.Clear("down");
  Go(job);

  WaitForEndOf(job, JobStatus::kSucceeded);
}

// The machine was lost: no exit.json, and Slurm knows nothing any more.
TEST_F(SlurmTest, AVanishedRunIsStartedAgain) {
  Script({kCountRuns, "if [ $(wc -l < \"$3/runs\") = 1 ]; then sleep 60; fi", kSucceed});
  StartOnSlurm();
  const Job job = Submit();
  WaitForFirstRun(job);

  const std::string kill = "kill -9 $(cat '" + (dir_ / "slurm/jobs/1/pid").string() + "')";
  ASSERT_EQ(::system(kill.c_str()), 0);

  WaitForEndOf(job, JobStatus::kSucceeded);
  EXPECT_EQ(Runs(job), 2u);
}

TEST_F(SlurmTest, ARefusedSubmissionFailsWithItsReason) {
  slurm_.Set("refuse");
  Script({kSucceed});
  StartOnSlurm();

  const Job ended = WaitForEndOf(Submit(), JobStatus::kFailed);

  EXPECT_NE(ended.error->message.find("invalid partition"), std::string::npos);
}

TEST_F(SlurmTest, OptionsThatTandemSetsOrThatAreNoneAreRefused) {
  for (const char* bad :
       {"--job-name=x", "--wrap=id", "-p", "partition", "--a=b\nc", "--A=b", ""}) {
    EXPECT_THROW(SlurmCluster({"/usr/bin/tandem", {bad}}), Error) << bad;
  }
  EXPECT_THROW(SlurmCluster({"tandem", {}}), Error);
  EXPECT_THROW(MakeJobRunner("local", "", {"--partition=x"}), Error);
  EXPECT_EQ(MakeJobRunner("local", "", {}), nullptr);
}

// The scheduler stores a job's environment.
TEST_F(SlurmTest, ToolsGetNoKeys) {
  WriteScript(dir_ / "slurm" / "bin" / "sbatch",
              {"env > '" + (dir_ / "environment").string() + "'", "exit 1"});
  ::setenv("HF_TOKEN", "marker-1", 1);
  ::setenv("TANDEM_ADMIN_KEY", "marker-2", 1);
  ::setenv("PGPASSWORD", "marker-3", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "marker-4", 1);
  Script({kSucceed});
  StartOnSlurm();

  WaitForEndOf(Submit(), JobStatus::kFailed);

  ::unsetenv("HF_TOKEN");
  ::unsetenv("TANDEM_ADMIN_KEY");
  ::unsetenv("PGPASSWORD");
  ::unsetenv("AWS_SECRET_ACCESS_KEY");
  const std::string environment = FileText(dir_ / "environment");
  EXPECT_NE(environment.find("PATH="), std::string::npos);
  EXPECT_EQ(environment.find("marker"), std::string::npos);
}

}  // namespace
}  // namespace tandem::server
