#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "server/jobs/child_process.h"

namespace tandem::server {

// One run of a job, on this machine or on a cluster. Used by the supervisor's thread alone.
class JobProcess {
 public:
  JobProcess() = default;
  virtual ~JobProcess() = default;
  JobProcess(const JobProcess&) = delete;
  JobProcess& operator=(const JobProcess&) = delete;

  // nullopt while the run goes on; afterwards always the same value. Never waits for the run.
  virtual std::optional<ExitStatus> Poll() = 0;
  // Asks the run to write a checkpoint and end.
  virtual void Terminate() = 0;
  // Ends the run and everything that it has started.
  virtual void Kill() = 0;
  // Of a process of this machine; nullopt: elsewhere, or invisible.
  virtual std::optional<ProcessIdentity> identity() const { return std::nullopt; }
  // Becomes readable when the run ends; -1: only Poll tells.
  virtual int poll_fd() const { return -1; }
};

// What a runner needs to know of a job.
struct JobStart {
  std::string id;
  std::string verb;  // "train"; the run is `tandem VERB --job DIR`
  std::filesystem::path dir;
  std::filesystem::path log;  // receives the standard output and error
  std::string spec = {};      // for a new `spec.json` of this replica; empty: it is there
};

// Where jobs run. All runners start the same verb in the same directory, so that a job gives the
// same files everywhere.
class JobRunner {
 public:
  JobRunner() = default;
  virtual ~JobRunner() = default;
  JobRunner(const JobRunner&) = delete;
  JobRunner& operator=(const JobRunner&) = delete;

  // Throws kUnavailable if a later try may succeed, other codes if it cannot.
  virtual std::unique_ptr<JobProcess> Start(const JobStart& job) = 0;
  // The run that an earlier server has started, also one whose end nobody has read yet. Null: none.
  virtual std::unique_ptr<JobProcess> Find(const JobStart& job,
                                           const std::optional<ProcessIdentity>& recorded) = 0;
  // Whether runs go on while no server watches them, because they use another machine.
  virtual bool outlives_server() const { return false; }
  // Whether no other replica can find the runs of this one. Then a replica that supervises no more
  // ends them, and the next supervisor starts them again.
  virtual bool is_private() const { return false; }
};

// Jobs as child processes of this server.
class LocalJobRunner : public JobRunner {
 public:
  explicit LocalJobRunner(std::filesystem::path program) : program_(std::move(program)) {}

  std::unique_ptr<JobProcess> Start(const JobStart& job) override;
  std::unique_ptr<JobProcess> Find(const JobStart& job,
                                   const std::optional<ProcessIdentity>& recorded) override;

 private:
  std::filesystem::path program_;
};

// A run that ended with an unknown status.
std::unique_ptr<JobProcess> EndedRunOfJob();

}  // namespace tandem::server
