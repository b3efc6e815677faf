#include "server/jobs/job_supervisor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/jobs/unique_fd.h"
#include "tests/engine/io/file_helpers.h"

// Jobs are shell scripts here, called as `script train --job DIR`. A job that must go on until the
// test has looked at it waits for the file DIR/go.

namespace tandem::server {
namespace {

using engine::ExpectError;
using engine::FileText;
using engine::TemporaryDir;
using engine::WriteFile;
using std::chrono::milliseconds;
using StopMode = JobSupervisor::StopMode;

constexpr std::chrono::seconds kPatience{60};  // until a test is called failed; never waited out

constexpr const char* kSucceed =
    R"(printf '{"status":"succeeded","model_dir":"artifact"}' > "$3/result.json"; exit 0)";
constexpr const char* kWaitForGo = R"(while [ ! -e "$3/go" ]; do sleep 0.01; done)";
constexpr const char* kCountRuns = R"(echo run >> "$3/runs")";
constexpr const char* kStopOnTerm = R"(trap 'exit 75' TERM)";

// For conditions outside the supervisor; those inside have a subscription.
bool WaitFor(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

std::filesystem::path WriteScript(const std::filesystem::path& path,
                                  const std::vector<std::string>& lines) {
  std::string text = "#!/bin/sh\n";
  for (const std::string& line : lines) text += line + "\n";
  WriteFile(path, text);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

JobSupervisorOptions FastOptions(const std::filesystem::path& program) {
  JobSupervisorOptions options;
  options.program = program;
  options.poll_interval = milliseconds(5);
  options.restart_delay = milliseconds(0);
  return options;
}

class JobSupervisorTest : public testing::Test {
 protected:
  // Replaced by the next call, so that a restarted job may behave differently.
  void Script(const std::vector<std::string>& lines) { WriteScript(dir_ / "script", lines); }

  void StartSupervisor(const std::function<void(JobSupervisorOptions&)>& change = {}) {
    JobSupervisorOptions options = FastOptions(dir_ / "script");
    if (change) change(options);
    supervisor_ = std::make_unique<JobSupervisor>(JobStore::Open(data_dir()), options,
                                                  [this](const Job& job) {
                                                    if (on_succeeded_) on_succeeded_(job);
                                                  });
  }

  Job Submit(const std::string& spec = "{}") { return supervisor_->Submit(JobType::kTrain, spec); }

  // Waits for `condition`, looked at whenever the supervisor says that something changed.
  Job WaitForJob(const std::string& id, const std::function<bool(const Job&)>& condition) {
    std::mutex mutex;
    std::condition_variable changed;
    int changes = 0;
    const JobSubscription subscription = supervisor_->Subscribe(id, [&] {
      const std::lock_guard lock(mutex);
      ++changes;
      changed.notify_one();
    });
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (int seen = 0;;) {
      Job job = supervisor_->Find(id).value();
      if (condition(job)) return job;
      std::unique_lock lock(mutex);
      if (!changed.wait_until(lock, deadline, [&] { return changes != seen; })) {
        ADD_FAILURE() << "job stays " << NameOf(job.status) << "; log:\n"
                      << FileText(job.dir / "log.txt");
        return job;
      }
      seen = changes;
    }
  }
  Job WaitForEnd(const std::string& id) {
    return WaitForJob(id, [](const Job& job) { return IsFinished(job.status); });
  }
  Job WaitForEndOf(const Job& job, JobStatus expected) {
    Job ended = WaitForEnd(job.id);
    EXPECT_EQ(NameOf(ended.status), NameOf(expected))
        << (ended.error ? ended.error->message : std::string());
    return ended;
  }
  // Until the script has got as far as writing DIR/`name`.
  void WaitForFile(const Job& job, const std::string& name) {
    EXPECT_TRUE(WaitFor([&] { return std::filesystem::exists(job.dir / name); })) << name;
  }

  // Until the script has counted itself: the file exists a moment before its line does.
  static void WaitForFirstRun(const Job& job) {
    EXPECT_TRUE(WaitFor([&] { return Runs(job) == 1; }));
  }

  static void Go(const Job& job) { WriteFile(job.dir / "go", ""); }
  static size_t Runs(const Job& job) {
    return FileText(job.dir / "runs").size() / std::string("run\n").size();
  }

  std::filesystem::path data_dir() const { return dir_ / "data"; }

  TemporaryDir dir_;
  std::function<void(const Job&)> on_succeeded_;
  std::unique_ptr<JobSupervisor> supervisor_;
};

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
    // As if the server had been killed between starting the child and writing down its pid.
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

// The real thing: a server process of its own, killed with SIGKILL; its children go to init.
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

TEST_F(JobSupervisorTest, ProgressFollowsTheEventsThroughHostileLines) {
  Script({R"(exec 4>> "$3/events.jsonl")",
          R"(echo 'not json' >&4; printf '\000\377\n' >&4; echo '{"kind":"step","step":"x"}' >&4)",
          R"(head -c 700000 /dev/zero | tr '\0' '[' >&4; echo >&4)",
          R"(echo '{"kind":"step","step":3,"total_steps":4}' >&4; printf '{"kind":"st' >&4)",
          kWaitForGo, kSucceed});
  StartSupervisor();

  const Job job = Submit();
  WaitForJob(job.id, [](const Job& now) { return now.progress == 0.75; });
  Go(job);

  WaitForEndOf(job, JobStatus::kSucceeded);
}

TEST_F(JobSupervisorTest, PipeInPlaceOfTheEventsStopsNobody) {
  Script({R"(mkfifo "$3/events.jsonl")", kSucceed});
  StartSupervisor();

  WaitForEndOf(Submit(), JobStatus::kSucceeded);
}

TEST_F(JobSupervisorTest, HostileResultFailsTheJob) {
  Script({R"(head -c 3000000 /dev/zero > "$3/result.json")"});
  StartSupervisor();

  const Job job = WaitForEndOf(Submit(), JobStatus::kFailed);

  EXPECT_EQ(job.error->code, "bad_result");
  EXPECT_NE(job.error->message.find("3000000 bytes"), std::string::npos) << job.error->message;
}

TEST_F(JobSupervisorTest, FollowerSeesEveryLineOnceAndTheEnd) {
  Script({"echo one", kWaitForGo, "echo two", "printf three", kSucceed});
  StartSupervisor();
  const Job job = Submit();
  std::string text;
  int64_t offset = 0;
  bool ended = false;

  WaitForJob(job.id, [&](const Job&) {
    const JobLog log = supervisor_->ReadLog(job.id, offset, 4096);
    for (const LogLine& line : log.lines.lines) {
      EXPECT_GE(line.offset, offset);
      text += line.text + ";";
    }
    offset = log.lines.next_offset;
    if (text == "one;") Go(job);
    ended = IsFinished(log.status) && log.lines.at_end;
    return ended;
  });

  EXPECT_EQ(text, "one;two;three;");
  ExpectError(ErrorCode::kInvalidArgument, {"-1"}, [&] { supervisor_->ReadLog(job.id, -1, 10); });
  ExpectError(ErrorCode::kNotFound, {"job-x"}, [&] { supervisor_->ReadLog("job-x", 0, 10); });
  ExpectError(ErrorCode::kNotFound, {"job-x"}, [&] { supervisor_->Subscribe("job-x", [] {}); });
}

TEST_F(JobSupervisorTest, EventsCanBeReadAsLines) {
  Script({R"(echo '{"kind":"message","message":"hello"}' > "$3/events.jsonl")", kSucceed});
  StartSupervisor();
  const Job job = WaitForEndOf(Submit(), JobStatus::kSucceeded);

  const JobLog events = supervisor_->ReadEvents(job.id, 0, 4096);

  ASSERT_EQ(events.lines.lines.size(), 1u);
  EXPECT_EQ(events.lines.lines[0].text, R"({"kind":"message","message":"hello"})");
}

TEST_F(JobSupervisorTest, ChildInheritsNeitherDescriptorsNorKeys) {
  Script({R"(for fd in /proc/$$/fd/*; do readlink $fd; done > "$3/descriptors")",
          R"(env > "$3/environment"; cat > "$3/stdin")",
          R"(cut -d ' ' -f 1,5 "/proc/$$/stat" > "$3/group")", kSucceed});
  WriteFile(dir_ / "secret", "");
  const UniqueFd leaky(::open((dir_ / "secret").c_str(), O_RDONLY));  // without O_CLOEXEC
  ::setenv("TANDEM_ADMIN_KEY", "hunter2", 1);
  ::setenv("TANDEM_FORCE_ISA", "reference", 1);
  StartSupervisor();

  const Job job = WaitForEndOf(Submit(), JobStatus::kSucceeded);
  ::unsetenv("TANDEM_ADMIN_KEY");
  ::unsetenv("TANDEM_FORCE_ISA");

  const std::string descriptors = FileText(job.dir / "descriptors");
  EXPECT_EQ(descriptors.find("secret"), std::string::npos) << descriptors;
  EXPECT_EQ(descriptors.find("tandem.db"), std::string::npos) << descriptors;
  EXPECT_EQ(descriptors.find("data/lock"), std::string::npos) << descriptors;
  EXPECT_NE(descriptors.find("run.lock"), std::string::npos) << descriptors;
  const std::string environment = FileText(job.dir / "environment");
  EXPECT_EQ(environment.find("hunter2"), std::string::npos);
  EXPECT_NE(environment.find("TANDEM_FORCE_ISA=reference"), std::string::npos);
  EXPECT_EQ(FileText(job.dir / "stdin"), "");
  const std::string group = FileText(job.dir / "group");  // "pid pgrp"
  const size_t space = group.find(' ');
  EXPECT_EQ(group.substr(0, space) + "\n", group.substr(space + 1));
}

TEST_F(JobSupervisorTest, ChildStartsWithDefaultSignalHandling) {
  // No shell script: shells block and unblock signals on their own account.
  WriteFile(dir_ / "script", R"(#!/usr/bin/awk -f
BEGIN {
  while ((getline line < "/proc/self/status") > 0)
    if (line ~ /^Sig(Blk|Ign)/) print line > (ARGV[3] "/signals")
  print "{\"status\":\"succeeded\"}" > (ARGV[3] "/result.json")
  exit 0
}
)");
  std::filesystem::permissions(dir_ / "script", std::filesystem::perms::owner_all);
  const auto old_handler = ::signal(SIGPIPE, SIG_IGN);
  sigset_t terminate;
  sigset_t old_mask;
  ::sigemptyset(&terminate);
  ::sigaddset(&terminate, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &terminate, &old_mask);
  StartSupervisor();  // its thread inherits the mask

  const Job job = WaitForEndOf(Submit(), JobStatus::kSucceeded);
  ::pthread_sigmask(SIG_SETMASK, &old_mask, nullptr);
  ::signal(SIGPIPE, old_handler);

  // "SigBlk:\t<hex>\nSigIgn:\t<hex>\n"; signals above 31 are the C library's own business.
  const std::string signals = FileText(job.dir / "signals");
  for (const char* name : {"SigBlk:\t", "SigIgn:\t"}) {
    const size_t at = signals.find(name);
    ASSERT_NE(at, std::string::npos) << signals;
    EXPECT_EQ(std::stoull(signals.substr(at + 8), nullptr, 16) & 0x7FFFFFFF, 0u) << signals;
  }
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

TEST_F(JobSupervisorTest, StoppedSupervisorStillAnswersButTakesNothing) {
  Script({kSucceed});
  StartSupervisor();
  const Job job = WaitForEndOf(Submit(), JobStatus::kSucceeded);
  supervisor_->Stop(StopMode::kInterruptJobs);

  ExpectError(ErrorCode::kUnavailable, {"stopping"}, [&] { Submit(); });
  EXPECT_EQ(supervisor_->List({}).jobs.size(), 1u);
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
