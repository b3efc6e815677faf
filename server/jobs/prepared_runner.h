#pragma once

#include <functional>
#include <memory>
#include <stop_token>

#include "server/jobs/job_runner.h"

namespace tandem::server {

// Runs of a replica whose data directory is its own. Before a process starts, a thread fetches what
// the job reads; meanwhile the job counts as running. Other replicas cannot find the runs.
class PreparedJobRunner : public JobRunner {
 public:
  // Makes the job's directory ready, on a thread of the job's own. Throws kCancelled after a stop.
  // Any other error fails the job, and its message is in the job's log.
  using Prepare = std::function<void(const JobStart& job, std::stop_token stop)>;

  PreparedJobRunner(std::shared_ptr<JobRunner> runner, Prepare prepare)
      : runner_(std::move(runner)), prepare_(std::move(prepare)) {}

  std::unique_ptr<JobProcess> Start(const JobStart& job) override;
  // Goes by the locks of this data directory: a recorded process may be of another replica.
  std::unique_ptr<JobProcess> Find(const JobStart& job,
                                   const std::optional<ProcessIdentity>& recorded) override;
  bool is_private() const override { return true; }

 private:
  const std::shared_ptr<JobRunner> runner_;
  const Prepare prepare_;
};

}  // namespace tandem::server
