#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/jobs/job_runner.h"

namespace tandem::server {

// One run of a job, as the scheduler lists it. The scheduler does not list a run that has ended.
struct ClusterRun {
  // kEnding: its process has ended or was asked to end, and the scheduler still clears up.
  enum class State { kWaiting, kRunning, kEnding };
  std::string job;  // JobStart::id
  std::string id;   // the scheduler's
  State state = State::kWaiting;
};

// A scheduler of other machines, as its own tools offer it. Used by one thread.
class Cluster {
 public:
  Cluster() = default;
  virtual ~Cluster() = default;
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  virtual std::string_view name() const = 0;  // "Slurm", for messages
  // Queues `tandem launch job` for the job and returns the scheduler's id of it. Throws
  // kUnavailable if a later try may succeed, other codes if it cannot.
  virtual std::string Submit(const JobStart& job) = 0;
  // The runs of these jobs, from one question to the scheduler. Throws kUnavailable within seconds
  // if it does not answer. REQUIRES: there is a job.
  virtual std::vector<ClusterRun> List(const std::vector<std::string>& jobs) = 0;
  // Asks a running job to write a checkpoint and end; removes a waiting one. The scheduler may
  // miss it: Remove follows after a while. These two never throw for a scheduler that is away.
  virtual void Terminate(const std::string& id) = 0;
  // Ends the job and removes its objects. Also called for a job that has ended.
  virtual void Remove(const std::string& id) = 0;
};

}  // namespace tandem::server
