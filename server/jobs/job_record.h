#pragma once

#include <cstdint>
#include <optional>

#include "server/jobs/child_process.h"
#include "server/jobs/job.h"

namespace tandem::server {

// The requested end of a running job, until its process has ended. The database stores these
// numbers.
enum class JobWish { kNone = 0, kCancel = 1, kPause = 2 };

// A job, and the state that the supervisor needs after a restart.
struct JobRecord {
  Job job;
  std::optional<ProcessIdentity> process;  // while it runs
  JobWish wish = JobWish::kNone;
  int restarts = 0;           // since the last reported checkpoint
  int64_t events_offset = 0;  // bytes of events.jsonl already ingested
};

// Records the end of a job at the current time. REQUIRES: it has no process any more.
void EndJob(JobRecord& record, JobStatus status);
// Writes one line to the server's log.
void LogEnd(const Job& job);

}  // namespace tandem::server
