#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "server/launch/cluster.h"

namespace tandem::server {

struct SlurmOptions {
  std::filesystem::path program;     // tandem on the machines of the cluster
  std::vector<std::string> options;  // further options of sbatch, such as --partition=long
};

// Slurm by sbatch, squeue and scancel, each with fixed arguments. Asks every machine-readable
// question with an explicit format.
class SlurmCluster : public Cluster {
 public:
  // Throws kInvalidArgument for an option that is not --name=value, or that this class sets itself.
  explicit SlurmCluster(SlurmOptions options);

  std::string_view name() const override { return "Slurm"; }
  std::string Submit(const JobStart& job) override;
  std::vector<ClusterRun> List(const std::vector<std::string>& jobs) override;
  void Terminate(const std::string& id) override;
  void Remove(const std::string& id) override;

 private:
  const SlurmOptions options_;
};

}  // namespace tandem::server
