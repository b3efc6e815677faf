#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "server/jobs/job_record.h"
#include "server/jobs/job_store.h"

namespace tandem::server {

// How work of the server's own has ended.
struct OwnEnd {
  JobStatus status = JobStatus::kSucceeded;
  std::optional<JobError> error = {};
  std::optional<std::string> result_json = {};
};

// The jobs that this very process does, from their beginning until their end is in the store. What
// stands here is the truth about them; the store follows when the disk lets it. No thread and no
// lock of its own: whoever guards the store guards this too.
class OwnWork {
 public:
  // The store must outlive it.
  explicit OwnWork(JobStore& store) : store_(store) {}

  // What the server before was doing itself when it ended becomes failed (`interrupted`). Throws
  // what the store throws.
  void FailLeft();

  // Takes it up as it stands in the store. `on_cancel` asks it to end; null: it cannot be asked.
  void Begin(JobRecord record, std::function<void()> on_cancel);
  // These three do not fail: what the disk refuses is logged. REQUIRES: begun and not ended.
  Job Start(const std::string& id);
  void Report(const std::string& id, double progress, const std::string& line);
  Job End(const std::string& id, OwnEnd end);
  // Writes down the ends that the disk refused. Throws as long as it does.
  void SaveEnded();

  // Remembers that somebody wants it cancelled, and returns what asks it to end. Throws
  // kFailedPrecondition, reason `unsupported_value`, where nothing does. REQUIRES: Find finds it.
  std::function<void()> Cancel(const std::string& id);

  // Null: it is not ours, or its end is in the store. Valid until it ends.
  const JobRecord* Find(std::string_view id) const;

 private:
  struct Own {
    JobRecord record;
    std::function<void()> on_cancel;
  };

  bool Save(const JobRecord& record);  // false: the disk refuses

  JobStore& store_;
  std::map<std::string, Own, std::less<>> own_;
};

}  // namespace tandem::server
