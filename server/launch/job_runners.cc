#include "server/launch/job_runners.h"

#include <chrono>

#include "engine/base/error.h"
#include "server/launch/kubernetes.h"
#include "server/launch/slurm.h"

namespace tandem::server {
namespace {

// Schedulers ask sites for few questions: Slurm's manual warns of loops around squeue.
constexpr std::chrono::milliseconds kQuestionInterval{2000};

}  // namespace

std::shared_ptr<JobRunner> MakeJobRunner(const std::string& where, const std::string& program,
                                         const std::vector<std::string>& options) {
  if (where == "local") {
    if (!options.empty() || !program.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "jobs-option and jobs-program need jobs-on slurm or kubernetes");
    }
    return nullptr;
  }
  std::shared_ptr<Cluster> cluster;
  if (where == "slurm") {
    SlurmOptions slurm;
    slurm.program = program;
    if (program.empty()) slurm.program = std::filesystem::read_symlink("/proc/self/exe");
    slurm.options = options;
    cluster = std::make_shared<SlurmCluster>(std::move(slurm));
  } else {
    KubernetesOptions kubernetes = ParseKubernetesOptions(options);
    if (!program.empty()) kubernetes.program = program;
    cluster = std::make_shared<KubernetesCluster>(std::move(kubernetes));
  }
  return std::make_shared<ClusterRunner>(std::move(cluster), kQuestionInterval);
}

}  // namespace tandem::server
