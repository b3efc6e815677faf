#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "server/jobs/job_record.h"
#include "server/jobs/job_store.h"

namespace tandem::server {

// The end of a job that the server does itself.
struct OwnEnd {
  JobStatus status = JobStatus::kSucceeded;
  std::optional<JobError> error = {};
  std::optional<std::string> result_json = {};
};

// Jobs that this process does itself, from their beginning until the store holds their end. This
// object has their true state; the store follows when the disk allows. It has no thread or lock:
// the lock of the store guards it too.
class OwnWork {
 public:
  // The store must outlive it.
  explicit OwnWork(JobStore& store) : store_(store) {}

  // Fails (`interrupted`) the own work that an ended server left unfinished; never that of this
  // object. Throws the store's errors.
  void FailLeft();

  // Adds a job that the store already holds. `on_cancel` asks the work to end; null: it cannot be
  // cancelled.
  void Begin(JobRecord record, std::function<void()> on_cancel);
  // These three never fail: disk errors are logged. REQUIRES: the job has begun and not ended.
  Job Start(const std::string& id);
  void Report(const std::string& id, double progress, const std::string& line);
  Job End(const std::string& id, OwnEnd end);
  // Writes the ends that the disk refused earlier. Throws while the disk still refuses.
  void SaveEnded();

  // Records the request to cancel and returns the callback that asks the work to end. Throws
  // kFailedPrecondition, reason `unsupported_value`, if there is no such callback. REQUIRES:
  // Find(id) is not null.
  std::function<void()> Cancel(const std::string& id);

  // Null: not own work, or its end is in the store. The pointer is valid until the job ends.
  const JobRecord* Find(std::string_view id) const;

 private:
  struct Own {
    JobRecord record;
    std::function<void()> on_cancel;
  };

  bool Save(const JobRecord& record);  // false: disk error

  JobStore& store_;
  std::map<std::string, Own, std::less<>> own_;
};

}  // namespace tandem::server
