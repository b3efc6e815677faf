#include "server/jobs/job_runner.h"

#include <utility>

namespace tandem::server {
namespace {

class LocalProcess : public JobProcess {
 public:
  explicit LocalProcess(ChildProcess child) : child_(std::move(child)) {}

  std::optional<ExitStatus> Poll() override { return child_.Poll(); }
  void Terminate() override { child_.Terminate(); }
  void Kill() override { child_.Kill(); }
  std::optional<ProcessIdentity> identity() const override { return child_.identity(); }
  int poll_fd() const override { return child_.poll_fd(); }

 private:
  ChildProcess child_;
};

}  // namespace

std::unique_ptr<JobProcess> LocalJobRunner::Start(const JobStart& job) {
  return std::make_unique<LocalProcess>(ChildProcess::Spawn(
      {program_, {"tandem", job.verb, "--job", job.dir.string()}, job.dir, job.log}));
}

std::unique_ptr<JobProcess> LocalJobRunner::Find(const JobStart& job,
                                                 const std::optional<ProcessIdentity>& recorded) {
  std::optional<ChildProcess> child = ChildProcess::Find(job.dir, recorded);
  if (!child) return nullptr;
  return std::make_unique<LocalProcess>(std::move(*child));
}

std::unique_ptr<JobProcess> EndedRunOfJob() {
  return std::make_unique<LocalProcess>(ChildProcess::Ended());
}

}  // namespace tandem::server
