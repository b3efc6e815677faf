#include "server/jobs/prepared_runner.h"

#include <atomic>
#include <thread>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/thread_name.h"
#include "server/jobs/exit_codes.h"
#include "server/jobs/job_files.h"

namespace tandem::server {
namespace {

class PreparedProcess : public JobProcess {
 public:
  PreparedProcess(std::shared_ptr<JobRunner> runner, const PreparedJobRunner::Prepare& prepare,
                  JobStart job)
      : runner_(std::move(runner)),
        job_(std::move(job)),
        thread_([this, prepare](const std::stop_token& stop) {
          NameThisThread("tandem-prepare");
          error_ = Attempt([&] { prepare(job_, stop); });
          is_prepared_ = true;
        }) {}

  std::optional<ExitStatus> Poll() override {
    if (process_) return process_->Poll();
    if (!exit_ && is_prepared_) Begin();
    return process_ ? process_->Poll() : exit_;
  }

  void Terminate() override {
    if (process_) return process_->Terminate();
    thread_.request_stop();
  }
  void Kill() override {
    if (process_) return process_->Kill();
    thread_.request_stop();
  }
  std::optional<ProcessIdentity> identity() const override {
    return process_ ? process_->identity() : std::nullopt;
  }
  int poll_fd() const override { return process_ ? process_->poll_fd() : -1; }

 private:
  // Starts the process, or decides how the run ends without one.
  void Begin() {
    std::optional<Error> error = error_;
    if (thread_.get_stop_token().stop_requested()) {
      error = Error(ErrorCode::kCancelled, "the run was ended before its process began");
    }
    if (!error) error = Attempt([&] { process_ = runner_->Start(job_); });
    if (!error) return;
    const bool again =
        error->code() == ErrorCode::kCancelled || error->code() == ErrorCode::kUnavailable;
    if (error->code() != ErrorCode::kCancelled) {
      AppendLogLine(job_.log, std::string("tandem: ") + error->what());
    }
    exit_ = ExitStatus{ExitStatus::Kind::kCode, again ? kExitTryAgain : kExitIo};
  }

  const std::shared_ptr<JobRunner> runner_;
  const JobStart job_;
  std::optional<Error> error_;  // of the preparation; written before is_prepared_
  std::atomic<bool> is_prepared_{false};
  std::unique_ptr<JobProcess> process_;
  std::optional<ExitStatus> exit_;
  std::jthread thread_;  // last: it uses the members above
};

}  // namespace

std::unique_ptr<JobProcess> PreparedJobRunner::Start(const JobStart& job) {
  return std::make_unique<PreparedProcess>(runner_, prepare_, job);
}

std::unique_ptr<JobProcess> PreparedJobRunner::Find(const JobStart& job,
                                                    const std::optional<ProcessIdentity>&) {
  if (!std::filesystem::is_directory(job.dir)) return nullptr;
  return runner_->Find(job, std::nullopt);
}

}  // namespace tandem::server
