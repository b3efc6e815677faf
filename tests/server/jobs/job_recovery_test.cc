#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "tests/server/jobs/job_supervisor_fixture.h"

namespace tandem::server {
namespace {

TEST_F(JobSupervisorTest, StoppedServerLeavesAJobToResumeWithoutCountingIt) {
  Script({kCountRuns, kStopOnTerm, kWaitForGo, kSucceed});
  const auto no_restarts = [](JobSupervisorOptions& options) { options.max_restarts = 0; };
  StartSupervisor(no_restarts);
  const Job job = Submit();
  WaitForFirstRun(job);

  supervisor_.reset();
  StartSupervisor(no_restarts);
  Go(job);
  WaitForEndOf(job, JobStatus::kSucceeded);

  EXPECT_EQ(Runs(job), 2u);
}

TEST_F(JobSupervisorTest, JobThatSucceedsWhileTheServerStopsIsPublishedByTheNext) {
  Script({R"(trap 'printf "{\"status\":\"succeeded\"}" > "$3/result.json"; exit 0' TERM)",
          R"(touch "$3/started")", kWaitForGo});
  int published = 0;
  on_succeeded_ = [&](const Job&) { ++published; };
  StartSupervisor();
  const Job job = Submit();
  WaitForFile(job, "started");

  supervisor_.reset();
  EXPECT_EQ(published, 0);
  StartSupervisor();

  WaitForEndOf(job, JobStatus::kSucceeded);
  EXPECT_EQ(published, 1);
}

TEST_F(JobSupervisorTest, StopDoesNotWaitForeverForAStubbornJob) {
  Script({"trap '' TERM", R"(touch "$3/started")", kWaitForGo, kSucceed});
  const auto short_grace = [](JobSupervisorOptions& options) {
    options.stop_grace = milliseconds(20);
  };
  StartSupervisor(short_grace);
  const Job job = Submit();
  WaitForFile(job, "started");

  supervisor_.reset();
  StartSupervisor(short_grace);

  EXPECT_EQ(NameOf(supervisor_->Find(job.id)->status), "running");
  Go(job);
  WaitForEndOf(job, JobStatus::kSucceeded);
}

TEST_F(JobSupervisorTest, LivingChildIsFoundAgainAndFinishes) {
  Script({kCountRuns, kWaitForGo,
          R"(echo '{"kind":"step","step":1,"total_steps":2}' > "$3/events.jsonl")", kSucceed});
  StartSupervisor();
  const Job job = Submit();
  WaitForFirstRun(job);
  supervisor_->Stop(StopMode::kLeaveJobs);
  supervisor_.reset();

  StartSupervisor();
  EXPECT_EQ(NameOf(supervisor_->Find(job.id)->status), "running");
  Go(job);
  WaitForEndOf(job, JobStatus::kSucceeded);

  EXPECT_EQ(Runs(job), 1u);
}

TEST_F(JobSupervisorTest, LivingChildIsFoundByItsLockWhereNoPidWasRecorded) {
  Script({kCountRuns, kStopOnTerm, kWaitForGo, kSucceed});
  StartSupervisor();
  const Job job = Submit();
  WaitForFirstRun(job);
  supervisor_->Stop(StopMode::kLeaveJobs);
  supervisor_.reset();
  {
    // As if the server was killed between starting the child and recording its pid.
    JobStore store = JobStore::Open(data_dir());
    JobRecord record = store.Find(job.id).value();
    record.process.reset();
    store.Update(record);
  }

  StartSupervisor();
  supervisor_->Cancel(job.id);
  WaitForEndOf(job, JobStatus::kCancelled);

  EXPECT_EQ(Runs(job), 1u);
}

TEST_F(JobSupervisorTest, RecycledPidIsNotMistakenForTheJob) {
  Script({kCountRuns, kWaitForGo, kSucceed});
  StartSupervisor();
  const Job job = Submit();
  WaitForFirstRun(job);
  Go(job);
  supervisor_->Stop(StopMode::kLeaveJobs);
  supervisor_.reset();
  WaitForFile(job, "result.json");
  {
    JobStore store = JobStore::Open(data_dir());
    JobRecord record = store.Find(job.id).value();
    record.job.status = JobStatus::kRunning;
    record.process = IdentifyProcess(::getpid());
    ASSERT_TRUE(record.process);
    ++record.process->start_ticks;
    store.Update(record);
  }

  StartSupervisor();

  WaitForEndOf(job, JobStatus::kSucceeded);
}

TEST_F(JobSupervisorTest, JobThatEndedWithoutAServerIsIngested) {
  Script({kCountRuns, kWaitForGo, kSucceed});
  int published = 0;
  on_succeeded_ = [&](const Job&) { ++published; };
  StartSupervisor();
  const Job job = Submit();
  WaitForFirstRun(job);
  supervisor_->Stop(StopMode::kLeaveJobs);
  const int published_before = published;
  supervisor_.reset();
  Go(job);
  WaitForFile(job, "result.json");

  StartSupervisor();
  WaitForEndOf(job, JobStatus::kSucceeded);

  EXPECT_EQ(published_before, 0);
  EXPECT_EQ(published, 1);
  EXPECT_EQ(Runs(job), 1u);
}

TEST_F(JobSupervisorTest, JobThatDiedWithoutAServerIsResumed) {
  Script({kCountRuns, R"(echo $$ > "$3/pid.tmp"; mv "$3/pid.tmp" "$3/pid")", kWaitForGo, kSucceed});
  StartSupervisor();
  const Job job = Submit();
  WaitForFile(job, "pid");
  supervisor_->Stop(StopMode::kLeaveJobs);
  supervisor_.reset();
  const pid_t pid = std::stoi(FileText(job.dir / "pid"));
  ::kill(-pid, SIGKILL);
  ASSERT_TRUE(WaitFor([&] { return !IdentifyProcess(pid); }));

  StartSupervisor();
  Go(job);
  WaitForEndOf(job, JobStatus::kSucceeded);

  EXPECT_EQ(Runs(job), 2u);
}

// A real server process, killed with SIGKILL; its children become init's.
TEST_F(JobSupervisorTest, KilledServersJobIsFoundAgainByTheNextServer) {
  Script({kCountRuns, kStopOnTerm, kWaitForGo, kSucceed});
  const std::string script = dir_ / "script";
  const std::string data = data_dir();
  std::string arguments[] = {"server", "--supervise", data, script};
  char* const argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                        arguments[3].data(), nullptr};
  pid_t server = 0;
  ASSERT_EQ(::posix_spawn(&server, "/proc/self/exe", nullptr, nullptr, argv, ::environ), 0);
  std::filesystem::path job_dir;
  ASSERT_TRUE(WaitFor([&] {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(data_dir() / "jobs", ignored)) {
      if (FileText(entry.path() / "runs") == "run\n") job_dir = entry.path();
    }
    return !job_dir.empty();
  }));
  ::kill(server, SIGKILL);
  ASSERT_EQ(::waitpid(server, nullptr, 0), server);

  StartSupervisor();
  const Job job = supervisor_->Find(job_dir.filename().string()).value();
  EXPECT_EQ(NameOf(job.status), "running");
  Go(job);
  WaitForEndOf(job, JobStatus::kSucceeded);

  EXPECT_EQ(Runs(job), 1u);
}

TEST_F(JobSupervisorTest, QueuedJobsOfAnEarlierServerRun) {
  Script({kCountRuns, kStopOnTerm, kWaitForGo, kSucceed});
  StartSupervisor();
  const Job first = Submit();
  const Job second = Submit();
  WaitForFirstRun(first);
  supervisor_.reset();

  StartSupervisor();
  Go(first);
  Go(second);

  WaitForEndOf(second, JobStatus::kSucceeded);
  EXPECT_EQ(NameOf(supervisor_->Find(first.id)->status), "succeeded");
}

TEST_F(JobSupervisorTest, JobWhoseDirectoryIsGoneFails) {
  Script({kStopOnTerm, R"(touch "$3/started")", kWaitForGo});
  StartSupervisor();
  const Job job = Submit();
  WaitForFile(job, "started");
  supervisor_.reset();
  std::filesystem::remove_all(job.dir);

  StartSupervisor();

  EXPECT_EQ(WaitForEndOf(job, JobStatus::kFailed).error->code, "not_started");
}

TEST_F(JobSupervisorTest, StoppedSupervisorStillAnswersButTakesNothing) {
  Script({kSucceed});
  StartSupervisor();
  const Job job = WaitForEndOf(Submit(), JobStatus::kSucceeded);
  supervisor_->Stop(StopMode::kInterruptJobs);

  ExpectError(ErrorCode::kUnavailable, {"stopping"}, [&] { Submit(); });
  EXPECT_EQ(supervisor_->List({}).jobs.size(), 1u);
}

// `--supervise DATA_DIR SCRIPT`: a server with one job, until it is killed.
int Supervise(const std::string& data_dir, const std::string& script) {
  JobSupervisor supervisor(JobStore::Open(data_dir), FastOptions(script), nullptr);
  supervisor.Submit(JobType::kTrain, "{}");
  while (true) ::pause();
}

}  // namespace
}  // namespace tandem::server

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--supervise") {
    return tandem::server::Supervise(argv[2], argv[3]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
