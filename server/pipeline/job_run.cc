#include "server/pipeline/job_run.h"

#include <poll.h>

#include <chrono>
#include <utility>

#include "server/jobs/child_process.h"
#include "server/jobs/job_outcome.h"
#include "server/jobs/running_job.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kPollMs = 50;
constexpr std::chrono::seconds kGrace{60};

fs::path ResultFile(const fs::path& dir) { return dir / "result.json"; }

// Waits until the process ends, at most kPollMs.
void WaitABit(const ChildProcess& child) {
  pollfd fd{child.poll_fd(), POLLIN, 0};  // poll() skips a negative descriptor
  ::poll(&fd, 1, kPollMs);
}

// Maps the program's exit codes to error codes.
ErrorCode CodeOf(const ExitStatus& exit) {
  if (exit.kind != ExitStatus::Kind::kCode) return ErrorCode::kInternal;
  switch (exit.value) {
    case 2:
      return ErrorCode::kInvalidArgument;
    case 65:
      return ErrorCode::kDataLoss;
    case 74:
      return ErrorCode::kIo;
    case 130:
      return ErrorCode::kCancelled;
    default:
      return ErrorCode::kInternal;
  }
}

class Runner {
 public:
  Runner(const JobRun& run, std::stop_token stop,
         const std::function<void(const ProgressEvent&)>& report)
      : run_(run), stop_(std::move(stop)), report_(report) {}

  JobRunEnd Go() {
    int restarts = 0;
    while (true) {
      bool made_checkpoint = false;
      const std::optional<ExitStatus> exit = OneProcess(&made_checkpoint);
      EndedRun ended;
      if (exit) ended.exit = *exit;
      ended.result = ReadJobResult(ResultFile(run_.dir));
      ended.last_log_lines = LastLogLines(LogFile(run_.dir));
      ended.max_restarts = run_.max_restarts;
      if (made_checkpoint) restarts = 0;
      ended.restarts = restarts;
      const bool has_succeeded = ended.result.state == JobResult::State::kSucceeded;
      if (stop_.stop_requested() && !has_succeeded) return {JobRunEnd::State::kStopped, "", {}, ""};
      const Outcome outcome = DecideOutcome(ended);
      switch (outcome.next) {
        case Outcome::Next::kSucceed:
          return {JobRunEnd::State::kSucceeded, std::move(ended.result.result_json), {}, ""};
        case Outcome::Next::kRestart:
          ++restarts;
          report_({"warning", 0, 0, 0, outcome.error.message + "; restarting it"});
          break;
        case Outcome::Next::kCancel:
          return {JobRunEnd::State::kFailed, "", ErrorCode::kCancelled, "was cancelled"};
        case Outcome::Next::kFail:
          return {JobRunEnd::State::kFailed, "", CodeOf(ended.exit), outcome.error.message};
      }
    }
  }

 private:
  // nullopt: no process ran, because a result exists or a stop was requested.
  std::optional<ExitStatus> OneProcess(bool* made_checkpoint) {
    std::optional<ChildProcess> child = ChildProcess::Find(run_.dir, std::nullopt);
    if (!child) {
      if (ReadJobResult(ResultFile(run_.dir)).state == JobResult::State::kSucceeded) {
        return std::nullopt;
      }
      if (stop_.stop_requested()) return std::nullopt;
      fs::remove(ResultFile(run_.dir));  // of a failed attempt
    } else {
      report_({"message", 0, 0, 0, "its process is still running; waiting for it"});
    }
    EventTail events(EventsFile(run_.dir), FileBytes(EventsFile(run_.dir)));
    if (!child) {
      child = ChildProcess::Spawn({.program = run_.program,
                                   .arguments = {"tandem", run_.verb, "--job", run_.dir.string()},
                                   .dir = run_.dir,
                                   .log = LogFile(run_.dir),
                                   .leads_group = run_.leads_group});
    }
    const auto on_event = [&](const ProgressEvent& event) {
      if (event.kind == "checkpoint") *made_checkpoint = true;
      report_(event);
    };
    bool is_asked = false;
    while (true) {
      const std::optional<ExitStatus> exit = child->Poll();
      while (events.Read(on_event)) {
      }
      if (exit) return exit;
      if (stop_.stop_requested() && !std::exchange(is_asked, true)) child->Terminate();
      WaitABit(*child);
    }
  }

  const JobRun& run_;
  const std::stop_token stop_;
  const std::function<void(const ProgressEvent&)>& report_;
};

}  // namespace

JobRunEnd RunJobProcess(const JobRun& run, std::stop_token stop,
                        const std::function<void(const ProgressEvent&)>& report) {
  return Runner(run, std::move(stop), report).Go();
}

void EndJobProcess(const fs::path& dir) {
  if (!fs::is_directory(dir)) return;
  std::optional<ChildProcess> child = ChildProcess::Find(dir, std::nullopt);
  if (!child) return;
  child->Terminate();
  const Clock::time_point until = Clock::now() + kGrace;
  bool is_killed = false;
  while (!child->Poll()) {
    if (Clock::now() > until && !std::exchange(is_killed, true)) child->Kill();
    WaitABit(*child);
  }
}

}  // namespace tandem::server
