#include "server/jobs/job_outcome.h"

#include <signal.h>
#include <string.h>

#include "server/jobs/exit_codes.h"

namespace tandem::server {
namespace {

// Signals sent from outside. Other signals come from the program's own faults, which a
// deterministic rerun would repeat.
bool FromOutside(int signal_number) {
  switch (signal_number) {
    case SIGKILL:  // the out-of-memory killer
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
    case SIGQUIT:
      return true;
    default:
      return false;
  }
}

bool IsResumable(const ExitStatus& exit) {
  switch (exit.kind) {
    case ExitStatus::Kind::kUnknown:
      return true;
    case ExitStatus::Kind::kSignal:
      return FromOutside(exit.value);
    case ExitStatus::Kind::kCode:
      return exit.value == kExitTryAgain;
  }
  return false;
}

std::string Describe(const ExitStatus& exit) {
  switch (exit.kind) {
    case ExitStatus::Kind::kUnknown:
      return "the job's process disappeared";
    case ExitStatus::Kind::kSignal:
      return "the job's process was ended by signal " + std::to_string(exit.value) + " (" +
             ::strsignal(exit.value) + ")";
    case ExitStatus::Kind::kCode:
      return "the job's process ended with exit code " + std::to_string(exit.value) +
             (exit.value == kExitIo      ? " (it could not read or write a file)"
              : exit.value == kExitInUse ? " (another process uses its directory)"
                                         : "");
  }
  return "";
}

std::string ReasonCode(const ExitStatus& exit) {
  if (exit.kind == ExitStatus::Kind::kSignal) return "crashed";
  if (exit.kind == ExitStatus::Kind::kUnknown) return "interrupted";
  switch (exit.value) {
    case kExitDone:
      return "no_result";
    case kExitUsage:
      return "usage";
    case kExitBadData:
      return "bad_data";
    case kExitInUse:
      return "in_use";
    case kExitIo:
      return "io_error";
    case kExitTryAgain:
      return "interrupted";
    default:
      return "failed";
  }
}

}  // namespace

Outcome DecideOutcome(const EndedRun& run) {
  using Next = Outcome::Next;
  if (run.cancel_requested) return {Next::kCancel, {}};
  switch (run.result.state) {
    case JobResult::State::kSucceeded:
      return {Next::kSucceed, {}};
    case JobResult::State::kCancelled:
      return {Next::kCancel, {}};
    case JobResult::State::kFailed:
    case JobResult::State::kInvalid:
      return {Next::kFail, run.result.error};
    case JobResult::State::kMissing:
      break;
  }
  if (run.exit.kind == ExitStatus::Kind::kCode && run.exit.value == kExitCancelled) {
    return {Next::kCancel, {}};
  }

  JobError error{Describe(run.exit), ReasonCode(run.exit)};
  if (error.code == "no_result") error.message += " but without result.json";
  const bool resumable = IsResumable(run.exit);
  if (resumable && run.restarts < run.max_restarts) return {Next::kRestart, error};
  if (resumable) {
    error.code = "interrupted";
    error.message +=
        ", and " + std::to_string(run.restarts) + " restarts did not reach a new checkpoint";
    if (run.exit.kind == ExitStatus::Kind::kSignal && run.exit.value == SIGKILL) {
      error.message +=
          "; the system probably ran out of memory: use smaller batches or shorter examples";
    }
  }
  if (!run.last_log_lines.empty()) error.message += "; last output: " + run.last_log_lines;
  return {Next::kFail, error};
}

}  // namespace tandem::server
