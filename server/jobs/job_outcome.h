#pragma once

#include <string>

#include "server/jobs/child_process.h"
#include "server/jobs/job_files.h"

namespace tandem::server {

// Decides the fate of a job whose process has ended. Pure: depends only on its argument.

struct EndedRun {
  ExitStatus exit;
  JobResult result;
  std::string last_log_lines;
  bool cancel_requested = false;
  int restarts = 0;  // since the last new checkpoint
  int max_restarts = 3;
};

struct Outcome {
  enum class Next { kSucceed, kFail, kCancel, kRestart };
  Next next = Next::kFail;
  JobError error;  // of kFail; for kRestart: the reason
};

// A request to cancel wins. Otherwise result.json decides if it exists, then exit code 130, which
// cancels. Exit 75, a signal from outside and an unknown end resume the job, up to `max_restarts`
// times. Any other exit fails it.
Outcome DecideOutcome(const EndedRun& run);

}  // namespace tandem::server
