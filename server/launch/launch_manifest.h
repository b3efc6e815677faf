#pragma once

#include <string>
#include <vector>

#include "server/launch/launch_plan.h"

namespace tandem::server {

enum class ManifestKind { kJob, kJobSet, kMpiJob, kTrainJob };

struct ManifestOptions {
  ManifestKind kind = ManifestKind::kMpiJob;
  std::string image;                        // required
  std::string name_space;                   // empty: kubectl's own
  std::string queue;                        // LocalQueue of Kueue; empty: starts at once
  std::string claim;                        // volume claim with data and results; empty: none
  std::string mount;                        // where the claim is mounted
  std::string cpu;                          // of a pod; empty: no request
  std::string memory;                       // of a pod; empty: no limit
  std::string token_secret;                 // Secret whose key `token` is the hub's; empty: none
  std::string runtime = "mpi-distributed";  // ClusterTrainingRuntime of a TrainJob
};

// The object as JSON, which kubectl reads like YAML. Throws kInvalidArgument, also for a kind that
// cannot run the plan: a Job or JobSet without MPI's launcher has one node.
std::string LaunchManifest(const LaunchPlan& plan, const ManifestOptions& options);

// The words of XPK's --command: `tandem train SPEC KEY=VALUE…`, or a trainer of MaxText, whose
// configuration `spec` replaces. Throws kInvalidArgument for other commands, for two specs and for
// Pathways. Sets plan.program, plan.spec and plan.overrides.
void ReadXpkCommand(const std::string& command, LaunchPlan& plan);

}  // namespace tandem::server
