#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/jobs/job.h"
#include "server/jobs/job_files.h"
#include "server/jobs/job_runner.h"
#include "server/jobs/job_store.h"
#include "server/jobs/job_watchers.h"
#include "server/jobs/own_work.h"
#include "server/jobs/running_job.h"
#include "server/jobs/unique_fd.h"

namespace tandem::server {

struct JobSupervisorOptions {
  // Started as `tandem <type> --job DIR`. The default is the running program, even if its file was
  // replaced meanwhile: a job runs the code of the server that accepted it.
  std::filesystem::path program = "/proc/self/exe";
  // Where jobs run; null: as child processes of `program`.
  std::shared_ptr<JobRunner> runner{};
  size_t max_running = 1;
  size_t max_queued = 100;  // submitted jobs; more get kUnavailable
  int max_restarts = 3;     // without a new checkpoint in between
  std::chrono::milliseconds restart_delay{2000};
  std::chrono::milliseconds poll_interval{200};   // between looks at the files of running jobs
  std::chrono::milliseconds cancel_grace{30000};  // from SIGTERM to SIGKILL
  std::chrono::milliseconds stop_grace{30000};    // for checkpoints when the server stops
};

struct JobLog {
  // The status before the lines were read. If it is a finished one and lines.at_end is set, the log
  // is complete.
  JobStatus status = JobStatus::kQueued;
  LogChunk lines;
};

// Runs jobs through a JobRunner, up to max_running at a time, and finds them again after a restart.
// Owns the job store, the children, and one thread that watches them. Any thread may call the
// public methods; none of them waits for a job.
//
// Replicas share the store. One of them, with the store's lease, starts and watches the children of
// all. The others take requests, and one of them takes over within ten seconds after a kill.
class JobSupervisor {
 public:
  // Publishes a successful job. Called on a thread of the job's own, so it may block. The job has
  // its final values, including result_json, except that its status is `running`. The job succeeds
  // when the function returns and fails when it throws. kCancelled means that the server is
  // stopping; the next server then publishes the job.
  using OnSucceeded = std::function<void(const Job&)>;
  // Called when a started job is cancelled and none of its processes is left. It removes files
  // outside the job's directory that only the job could use. It runs on the supervisor's thread or
  // on that of the caller of Cancel, possibly twice for one job. It must not throw; failed removals
  // are left alone.
  using OnCancelled = std::function<void(const Job&)>;

  // Adopts the jobs in the store: watches live processes, ingests the results of ended ones and
  // resumes the rest. A job that ended while no server ran gets its OnSucceeded now. A job that
  // already succeeded under an earlier server does not.
  JobSupervisor(JobStore store, JobSupervisorOptions options, OnSucceeded on_succeeded,
                OnCancelled on_cancelled = {});
  ~JobSupervisor();  // Stop(kInterruptJobs)
  JobSupervisor(const JobSupervisor&) = delete;
  JobSupervisor& operator=(const JobSupervisor&) = delete;

  // Writes spec.json and queues the job; both are on disk at return. Throws kInvalidArgument for a
  // spec that is not a JSON object of at most 1 MiB, and kUnsupported for a type without a child
  // process. Throws kUnavailable if the queue is full or the server is stopping.
  Job Submit(JobType type, std::string_view spec_json);
  // As above, for a process whose spec differs from the request. The record keeps the request.
  Job Submit(JobType type, std::string_view request_json, std::string_view spec_json,
             std::optional<int64_t> owner = std::nullopt);

  // Cancels a queued or paused job at once. Asks a running job to end; it becomes cancelled when
  // its process has ended. Throws kNotFound, or kFailedPrecondition: reason `job_not_active`, or
  // `unsupported_value` for own work without `on_cancel`.
  Job Cancel(std::string_view id);

  // Pauses a queued job at once. Asks a running job to write a checkpoint; it becomes paused when
  // its process has ended, unless it finished first. A paused job stays paused, across server
  // restarts too, until it is resumed or cancelled. Throws as Cancel: `job_not_active` also for a
  // paused job or one being cancelled, `unsupported_value` for own work.
  Job Pause(std::string_view id);
  // Queues a paused job again, in its old place. Throws as Cancel for any other job.
  Job Resume(std::string_view id);

  // Own work: jobs that this process does itself, such as loading and unloading models. The store,
  // lists and logs hold them like children's jobs, but the caller starts, reports and ends them. A
  // server fails the own work that an earlier server left unfinished (`interrupted`).
  //
  // Queues the job, whatever the length of the queue. Cancel calls `on_cancel` on its caller's
  // thread; this only asks, and the work may still end otherwise. Without `on_cancel`, Cancel is
  // refused. Throws kUnavailable if the server is stopping, and the store's errors.
  Job BeginOwn(JobType type, std::string_view request_json, std::function<void()> on_cancel);
  // The next three never fail. Disk errors are logged, and the end of a job is written as soon as
  // the disk allows. REQUIRES: the job has begun and not ended.
  Job StartOwn(const std::string& id);
  // Sets the progress, [0, 1]. A non-empty `line` goes to the job's log.
  void ReportOwn(const std::string& id, double progress, const std::string& line);
  Job EndOwn(const std::string& id, OwnEnd end);

  std::optional<Job> Find(std::string_view id);
  // These two never wait for the disk.
  TrainingFigures training_figures() const;
  JobCounts counts() const;
  JobPage List(const JobFilter& filter);

  // For replicas: call it when another one has changed jobs.
  void OnStoreChanged();
  // Tells the other replicas that kModelDeletedFile is in the job's directory.
  void TellModelDeleted(std::string_view id);

  // Lines of log.txt or events.jsonl from a byte offset; see ReadLogLines. Throws kNotFound for an
  // unknown job and kInvalidArgument for a negative offset.
  JobLog ReadLog(std::string_view id, int64_t offset, size_t max_bytes);
  JobLog ReadEvents(std::string_view id, int64_t offset, size_t max_bytes);

  // Calls back on the supervisor's thread when the status changes or one of the two files grows;
  // several changes can share one call. The callback must not block. To follow a log without gaps:
  // subscribe, read to the end, then read again at each call. Throws kNotFound.
  JobSubscription Subscribe(std::string_view id, std::function<void()> callback);

  enum class StopMode {
    kInterruptJobs,  // asks the children for a checkpoint and waits up to stop_grace
    kLeaveJobs,      // the children run on without a server
  };
  // In both modes the next server on this data directory takes over the jobs. Idempotent.
  void Stop(StopMode mode);

 private:
  using Clock = std::chrono::steady_clock;

  // REQUIRES for the next five: mutex_ held.
  std::optional<JobRecord> TryFindRecord(std::string_view id);
  JobRecord FindRecord(std::string_view id);  // throws kNotFound
  JobRecord FindActive(std::string_view id);  // also throws kFailedPrecondition
  JobRecord Create(JobType type, std::string_view request_json, std::string_view spec_json,
                   std::optional<int64_t> owner = std::nullopt);  // throws kUnavailable
  std::vector<JobRecord> QueuedForChildren();
  void Wake();

  // Supervisor thread (or constructor) only, to the end of the private functions.
  void Run();
  void Wait();
  bool Step();  // false: stop
  bool Supervises();
  void EndStrayRuns();
  void NotifyOfOthers();
  void AdoptRunningJobs();
  void StartQueuedJobs();
  bool StartNextJob();
  void Start(JobRecord record);
  void ObeyWish(RunningJob& running);
  void IngestEvents(RunningJob& running);
  void NotifyOfGrowth(RunningJob& running);
  bool FinishIfEnded(RunningJob& running);
  void Decide(RunningJob& running, const ExitStatus& exit);
  bool BeginPublishing(RunningJob& running);
  bool EndPublishing(RunningJob& running);
  void RemoveWhatIsLeft(const RunningJob& running);
  bool Record(RunningJob& running);
  void NotifyOfChanges();
  void CountJobs();

  const JobSupervisorOptions options_;
  const std::shared_ptr<JobRunner> runner_;  // never null
  const OnSucceeded on_succeeded_;
  const OnCancelled on_cancelled_;
  const UniqueFd wake_;  // an eventfd
  const std::shared_ptr<JobWatchers> watchers_;

  std::mutex mutex_;  // guards the six below
  JobStore store_;
  bool is_store_changed_ = false;  // by another replica
  std::set<std::string> changed_;  // ids whose watchers must be notified
  std::set<std::string> ending_;   // still running in the store, but already decided: too late to
                                   // cancel
  OwnWork own_;                    // uses store_
  std::optional<StopMode> stop_;

  mutable std::mutex figures_mutex_;  // guards the next two; separate, because mutex_ is held
                                      // during writes
  TrainingFigures figures_;
  JobCounts counts_;

  // Used only by the supervisor thread.
  std::vector<RunningJob> running_;
  std::map<std::string, Clock::time_point> not_before_;  // earliest time of a delayed restart
  std::optional<Clock::time_point> stop_deadline_;
  bool supervises_ = false;      // this replica
  bool may_have_strays_ = true;  // of earlier servers or of a lost lease, if runs are private
  Clock::time_point look_for_left_work_at_{};
  bool more_events_ = false;  // a file holds more than one step reads
  bool failed_ = false;       // the last step threw

  std::mutex join_mutex_;  // guards the joining of thread_
  std::thread thread_;
};

}  // namespace tandem::server
