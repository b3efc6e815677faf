#pragma once

#include <cstdint>
#include <optional>

#include "server/jobs/child_process.h"
#include "server/jobs/job.h"

namespace tandem::server {

// What somebody wants of a job that runs, until its process has ended. The numbers are the store's.
enum class JobWish { kNone = 0, kCancel = 1, kPause = 2 };

// A job, and what the supervisor must remember of it over a restart.
struct JobRecord {
  Job job;
  std::optional<ProcessIdentity> process;  // while it runs
  JobWish wish = JobWish::kNone;
  int restarts = 0;           // since the last checkpoint it reported
  int64_t events_offset = 0;  // bytes of events.jsonl already counted
};

int64_t UnixSeconds();

// The job has ended now; its process, if it had one, is gone.
void EndJob(JobRecord& record, JobStatus status);
// One line in the server's log.
void LogEnd(const Job& job);

}  // namespace tandem::server
