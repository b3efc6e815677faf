#include "server/jobs/own_work.h"

#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/unix_time.h"
#include "server/jobs/job_files.h"
#include "server/jobs/running_job.h"

namespace tandem::server {

void OwnWork::FailLeft() {
  for (const JobStatus status : {JobStatus::kQueued, JobStatus::kRunning}) {
    for (JobRecord& record : store_.LeftWithStatus(status)) {
      if (!VerbFor(record.job.type).empty()) continue;
      if (Find(record.job.id) != nullptr) continue;  // ours, whatever our lease says
      record.job.error = {"the server ended before this job was done", "interrupted"};
      EndJob(record, JobStatus::kFailed);
      store_.Update(record);
    }
  }
}

void OwnWork::Begin(JobRecord record, std::function<void()> on_cancel) {
  const std::string id = record.job.id;
  own_[id] = {std::move(record), std::move(on_cancel)};
}

Job OwnWork::Start(const std::string& id) {
  JobRecord& record = own_.at(id).record;
  record.job.status = JobStatus::kRunning;
  record.job.started_at = UnixNow();
  Save(record);
  return record.job;
}

void OwnWork::Report(const std::string& id, double progress, const std::string& line) {
  JobRecord& record = own_.at(id).record;
  record.job.progress = progress;
  if (Save(record) && !line.empty()) AppendLogLine(LogFile(record.job.dir), line);
}

Job OwnWork::End(const std::string& id, OwnEnd end) {
  const auto own = own_.find(id);
  TANDEM_CHECK(own != own_.end());
  // A copy: without memory the job keeps its state, and the caller can try again.
  JobRecord record = own->second.record;
  if (end.status == JobStatus::kSucceeded) record.job.progress = 1;
  record.job.error = std::move(end.error);
  record.job.result_json = std::move(end.result_json);
  EndJob(record, end.status);
  Job job = record.job;
  own->second.record = std::move(record);
  if (Save(own->second.record)) own_.erase(own);
  return job;
}

void OwnWork::SaveEnded() {
  for (auto own = own_.begin(); own != own_.end();) {
    const JobRecord& record = own->second.record;
    if (!IsFinished(record.job.status)) {
      ++own;
      continue;
    }
    store_.Update(record);
    own = own_.erase(own);
  }
}

std::function<void()> OwnWork::Cancel(const std::string& id) {
  Own& own = own_.at(id);
  if (!own.on_cancel) {
    throw Error(ErrorCode::kFailedPrecondition, "job " + id + " cannot be cancelled: it is a " +
                                                    std::string(NameOf(own.record.job.type)))
        .WithReason("unsupported_value");
  }
  own.record.wish = JobWish::kCancel;
  return own.on_cancel;
}

const JobRecord* OwnWork::Find(std::string_view id) const {
  const auto own = own_.find(id);
  return own == own_.end() ? nullptr : &own->second.record;
}

bool OwnWork::Save(const JobRecord& record) {
  const std::exception_ptr fault = FaultOf([&] { store_.Update(record); });
  if (!fault) return true;
  HasMemoryFor([&] {
    spdlog::error("job not recorded id={} status={} reason=\"{}\"", record.job.id,
                  NameOf(record.job.status), ToError(fault).what());
  });
  return false;
}

}  // namespace tandem::server
