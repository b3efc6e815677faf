#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>

#include "server/jobs/job_runner.h"
#include "server/launch/cluster.h"
#include "server/launch/cluster_view.h"

namespace tandem::server {

// Runs jobs on a cluster. The job's directory must have the same path on all machines. The
// scheduler's id is in DIR/cluster.json from the submission to the end, and `tandem launch job`
// writes DIR/exit.json. So a server that was away finds both a running and an ended job.
class ClusterRunner : public JobRunner {
 public:
  // `interval`: between two questions to the scheduler, each about all jobs.
  ClusterRunner(std::shared_ptr<Cluster> cluster, std::chrono::milliseconds interval)
      : view_(std::make_shared<ClusterView>(std::move(cluster), interval)) {}

  std::unique_ptr<JobProcess> Start(const JobStart& job) override;
  // While the scheduler is away and nothing is recorded, a run that finds its id later. Throws
  // kFailedPrecondition if the run is on another scheduler, which only that one can ask.
  std::unique_ptr<JobProcess> Find(const JobStart& job,
                                   const std::optional<ProcessIdentity>& recorded) override;
  bool outlives_server() const override { return true; }

 private:
  const std::shared_ptr<ClusterView> view_;
};

std::filesystem::path ClusterFile(const std::filesystem::path& dir);
std::filesystem::path ExitFile(const std::filesystem::path& dir);
// The end of the run in `dir`, written by RunClusterJob; nullopt: it has not ended.
std::optional<ExitStatus> ReadExitFile(const std::filesystem::path& dir);

// The main function of a cluster's machine: runs `tandem VERB --job DIR` as a child process,
// passes on SIGTERM and SIGINT, and writes DIR/exit.json. Returns the child's exit code.
int RunClusterJob(const JobStart& job, const std::filesystem::path& program);

}  // namespace tandem::server
