#include "server/jobs/job_record.h"

#include "engine/base/log.h"
#include "engine/base/unix_time.h"

namespace tandem::server {

void EndJob(JobRecord& record, JobStatus status) {
  record.job.status = status;
  record.job.finished_at = UnixNow();
  record.process.reset();
}

void LogEnd(const Job& job) {
  if (job.error) {
    // The message quotes the job's output, which can hold sampled text, so the log gets only the
    // code.
    spdlog::warn("job ended id={} status={} code={}", job.id, NameOf(job.status), job.error->code);
  } else {
    spdlog::info("job ended id={} status={}", job.id, NameOf(job.status));
  }
}

}  // namespace tandem::server
