#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/jobs/job_runner.h"

namespace tandem::server {

// A scheduler of other machines, as its own tools offer it. Used by one thread.
class Cluster {
 public:
  // How the scheduler sees a job. kUnknown: it did not answer.
  enum class State { kWaiting, kRunning, kGone, kUnknown };

  Cluster() = default;
  virtual ~Cluster() = default;
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  virtual std::string_view name() const = 0;  // "Slurm", for messages
  // Queues `tandem launch job` for the job and returns the scheduler's id of it. Throws
  // kUnavailable if a later try may succeed, other codes if it cannot.
  virtual std::string Submit(const JobStart& job) = 0;
  // The id of a job that was submitted; empty: there is none. Throws kUnavailable.
  virtual std::string Find(const JobStart& job) = 0;
  virtual State Ask(const std::string& id) = 0;
  // Asks a running job to write a checkpoint and end; removes a waiting one. The scheduler may
  // miss it: Kill follows after a while. These two never throw for a scheduler that is away.
  virtual void Terminate(const std::string& id) = 0;
  // Ends the job and removes its objects. Also called for a job that has ended.
  virtual void Remove(const std::string& id) = 0;
};

// Runs jobs on a cluster. The job's directory must have the same path on all machines. The
// scheduler's id is in DIR/cluster.json from the submission to the end, and `tandem launch job`
// writes DIR/exit.json. So a server that was away finds both a running and an ended job.
class ClusterRunner : public JobRunner {
 public:
  // `interval`: between two questions to the scheduler about one job.
  ClusterRunner(std::shared_ptr<Cluster> cluster, std::chrono::milliseconds interval)
      : cluster_(std::move(cluster)), interval_(interval) {}

  std::unique_ptr<JobProcess> Start(const JobStart& job) override;
  std::unique_ptr<JobProcess> Find(const JobStart& job,
                                   const std::optional<ProcessIdentity>& recorded) override;
  bool outlives_server() const override { return true; }

 private:
  const std::shared_ptr<Cluster> cluster_;
  const std::chrono::milliseconds interval_;
};

std::filesystem::path ClusterFile(const std::filesystem::path& dir);
std::filesystem::path ExitFile(const std::filesystem::path& dir);
// The end of the run in `dir`, written by RunClusterJob; nullopt: it has not ended.
std::optional<ExitStatus> ReadExitFile(const std::filesystem::path& dir);

// The main function of a cluster's machine: runs `tandem VERB --job DIR` as a child process,
// passes on SIGTERM and SIGINT, and writes DIR/exit.json. Returns the child's exit code.
int RunClusterJob(const JobStart& job, const std::filesystem::path& program);

}  // namespace tandem::server
