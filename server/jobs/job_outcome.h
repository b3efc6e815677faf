#pragma once

#include <string>

#include "server/jobs/child_process.h"
#include "server/jobs/job_files.h"

namespace tandem::server {

// What becomes of a job whose process has ended. Pure: decided from values alone.

struct EndedRun {
  ExitStatus exit;
  JobResult result;
  std::string last_log_lines;
  bool cancel_requested = false;
  int restarts = 0;  // so far, without a new checkpoint between them
  int max_restarts = 3;
};

struct Outcome {
  enum class Next { kSucceed, kFail, kCancel, kRestart };
  Next next = Next::kFail;
  JobError error;  // of kFail; of kRestart: why
};

// A request to cancel wins. Then result.json decides, if the process got as far as writing it.
// Without one: exit 75, and ends that say nothing about the job (killed from outside, unknown), are
// reasons to resume, `max_restarts` times; any other exit is the job's own failure.
Outcome DecideOutcome(const EndedRun& run);

}  // namespace tandem::server
