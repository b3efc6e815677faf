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
#include "server/jobs/job_store.h"
#include "server/jobs/job_watchers.h"
#include "server/jobs/own_work.h"
#include "server/jobs/running_job.h"
#include "server/jobs/unique_fd.h"

namespace tandem::server {

struct JobSupervisorOptions {
  // Started as `tandem <type> --job DIR`. The default is this very program, even if the file has
  // been replaced since: a job runs the code of the server that answers for it.
  std::filesystem::path program = "/proc/self/exe";
  size_t max_running = 1;
  size_t max_queued = 100;  // submitted ones; beyond: kUnavailable
  int max_restarts = 3;     // without a new checkpoint in between
  std::chrono::milliseconds restart_delay{2000};
  std::chrono::milliseconds poll_interval{
      200};  // how often the files of running jobs are looked at
  std::chrono::milliseconds cancel_grace{30000};  // from SIGTERM to SIGKILL
  std::chrono::milliseconds stop_grace{30000};    // for checkpoints, when the server stops
};

struct JobLog {
  // As it was before the lines were read: if it is a finished one and lines.at_end is set, there
  // will be nothing more.
  JobStatus status = JobStatus::kQueued;
  LogChunk lines;
};

// Runs jobs as child processes, one after the other, and finds them again after a restart. Owns the
// job store, the children, and one thread that watches them. Every public method may be called from
// any thread, and none waits for a job.
class JobSupervisor {
 public:
  // Called on a thread of the job's own, which may take its time, with the job as it will be,
  // result_json included, but still `running`. The job becomes succeeded when it returns, and
  // failed when it throws; kCancelled says that the server stops, and leaves the job to the next
  // one.
  using OnSucceeded = std::function<void(const Job&)>;
  // Called when a job that has been started will not go on because somebody wants it cancelled, and
  // no process of it is left: takes away what lies outside of the job's directory and only the job
  // itself could have used. On the supervisor's thread, or on that of whoever cancels; may come
  // twice. It does not throw: what it cannot take away, it leaves.
  using OnCancelled = std::function<void(const Job&)>;

  // Takes up what the store holds: watches the jobs whose process still lives, ingests those that
  // ended meanwhile, resumes the others. A job that ended while no server ran gets its OnSucceeded
  // now; one that succeeded under an earlier server does not get it again.
  JobSupervisor(JobStore store, JobSupervisorOptions options, OnSucceeded on_succeeded,
                OnCancelled on_cancelled = {});
  ~JobSupervisor();  // Stop(kInterruptJobs)
  JobSupervisor(const JobSupervisor&) = delete;
  JobSupervisor& operator=(const JobSupervisor&) = delete;

  // Writes spec.json and queues the job; on disk when it returns. Throws kInvalidArgument for a
  // spec that is not a JSON object of at most 1 MiB, kUnsupported for a type without a child
  // process, kUnavailable when the queue is full or the server stops.
  Job Submit(JobType type, std::string_view spec_json);
  // The same where what was asked for, which the record keeps, is not what the process reads.
  Job Submit(JobType type, std::string_view request_json, std::string_view spec_json);

  // A queued job is cancelled at once, a running one is asked to end and becomes cancelled when its
  // process has gone. Throws kNotFound, or kFailedPrecondition with reason `job_not_active`.
  Job Cancel(std::string_view id);

  // A queued job is paused at once; a running one is asked to write a checkpoint and becomes paused
  // when its process has gone, unless it has come to its end meanwhile. It stays so, over restarts
  // of the server too, until it is resumed or cancelled. Throws as Cancel; a job that is paused, or
  // asked to end already, is `job_not_active`, and own work cannot be paused.
  Job Pause(std::string_view id);
  // Puts a paused job in line again, in its old place. Throws as Cancel for any other.
  Job Resume(std::string_view id);

  // Work that this very process does: loading and unloading models. It stands in the store and in
  // every list and log as the children's does, but whoever begins it also starts, reports and ends
  // it. What a server left unfinished, the next one ends as failed (`interrupted`).
  //
  // Queues it, however long the queue. `on_cancel` is called when somebody wants it cancelled, on
  // their thread; it only asks, and the work may still end in another way. Without it, Cancel is
  // refused. Throws kUnavailable when the server stops, and what the store throws.
  Job BeginOwn(JobType type, std::string_view request_json, std::function<void()> on_cancel);
  // The other three do not fail: what the disk refuses is logged, and the end of a job written down
  // when it can be. REQUIRES: begun and not ended.
  Job StartOwn(const std::string& id);
  // How far it is, and, where there is something to say, a line for its log.
  void ReportOwn(const std::string& id, double progress, const std::string& line);
  Job EndOwn(const std::string& id, OwnEnd end);

  std::optional<Job> Find(std::string_view id);
  // These two never wait for the disk.
  TrainingFigures training_figures() const;
  JobCounts counts() const;
  JobPage List(const JobFilter& filter);

  // Lines of log.txt, or of events.jsonl, from a byte offset on: ReadLogLines. Throws kNotFound for
  // an unknown job and kInvalidArgument for a negative offset.
  JobLog ReadLog(std::string_view id, int64_t offset, size_t max_bytes);
  JobLog ReadEvents(std::string_view id, int64_t offset, size_t max_bytes);

  // Calls back on the supervisor's thread whenever the status changed or one of the two files grew;
  // several changes may come as one call. The callback must not block. To follow a log without
  // gaps: subscribe, then read to the end, then read again at each call. Throws kNotFound.
  JobSubscription Subscribe(std::string_view id, std::function<void()> callback);

  enum class StopMode {
    kInterruptJobs,  // ask the children to write a checkpoint, and wait for that up to stop_grace
    kLeaveJobs,      // let them run on without a server
  };
  // Either way the next server on this data directory carries on. Idempotent.
  void Stop(StopMode mode);

 private:
  using Clock = std::chrono::steady_clock;

  // REQUIRES: mutex_ held, for the next five.
  std::optional<JobRecord> TryFindRecord(std::string_view id);
  JobRecord FindRecord(std::string_view id);  // throws kNotFound
  JobRecord FindActive(std::string_view id);  // the same, and kFailedPrecondition
  JobRecord Create(JobType type, std::string_view request_json,
                   std::string_view spec_json);  // throws kUnavailable
  std::vector<JobRecord> QueuedForChildren();
  void Wake();

  // All below: supervisor thread (or the constructor) only.
  void Run();
  void Wait();
  bool Step();  // false: stop
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
  const OnSucceeded on_succeeded_;
  const OnCancelled on_cancelled_;
  const UniqueFd wake_;  // an eventfd
  const std::shared_ptr<JobWatchers> watchers_;

  std::mutex mutex_;  // guards the five below
  JobStore store_;
  std::set<std::string> changed_;  // ids whose watchers have not been told
  std::set<std::string> ending_;   // running, but decided: too late to cancel
  OwnWork own_;                    // in store_
  std::optional<StopMode> stop_;

  mutable std::mutex figures_mutex_;  // guards these two; apart, for mutex_ is held over writes
  TrainingFigures figures_;
  JobCounts counts_;

  // Used by the supervisor thread alone.
  std::vector<RunningJob> running_;
  std::map<std::string, Clock::time_point> not_before_;  // restarts that wait a while
  std::optional<Clock::time_point> stop_deadline_;
  bool more_events_ = false;  // a file had more than one step reads
  bool failed_ = false;       // the last step threw

  std::mutex join_mutex_;  // guards the joining of thread_
  std::thread thread_;
};

}  // namespace tandem::server
