// The supervisor's thread: starts jobs, watches them and decides their outcome.

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/thread_name.h"
#include "engine/base/thread_round.h"
#include "engine/base/unix_time.h"
#include "server/jobs/job_supervisor.h"

namespace tandem::server {
namespace {

constexpr std::chrono::milliseconds kPauseAfterFailure{1000};
// With replicas:
constexpr std::chrono::milliseconds kLookAtStoreEvery{1000};
constexpr std::chrono::milliseconds kLookForLeftWorkEvery{5000};

JobStart StartOf(const Job& job) {
  return {job.id, std::string(VerbFor(job.type)), job.dir, LogFile(job.dir)};
}

}  // namespace

void JobSupervisor::Run() {
  NameThisThread("tandem-jobs");
  while (true) {
    bool is_over = false;
    const std::optional<Error> error = Attempt([&] {
      is_over = !Step();
      NotifyOfChanges();
    });
    failed_ = error.has_value();
    if (!error && is_over) {
      // A failure costs time only: the lease expires.
      const std::lock_guard lock(mutex_);
      (void)Attempt([&] { store_.ReleaseLease(); });
      return;
    }
    if (error) {
      // Probably a full disk. Nothing is lost: every step starts from the store, the files and the
      // processes, so the next step repeats the failed work.
      spdlog::error("job supervisor error=\"{}\"", error->what());
      const std::lock_guard lock(mutex_);
      if (stop_ == StopMode::kLeaveJobs || (stop_deadline_ && Clock::now() >= *stop_deadline_)) {
        return;
      }
    }
    UntilMemorySuffices([this] { Wait(); });
  }
}

void JobSupervisor::Wait() {
  using std::chrono::milliseconds;
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
  std::optional<milliseconds> timeout;
  const auto at_most = [&](milliseconds limit) {
    timeout = std::max(milliseconds(0), std::min(timeout.value_or(limit), limit));
  };
  const auto until = [&](Clock::time_point time) {
    at_most(std::chrono::ceil<milliseconds>(time - Clock::now()));
  };

  if (failed_) {
    // Polls no process descriptors here: one that stays readable would cause a busy loop.
    at_most(kPauseAfterFailure);
  } else {
    for (const RunningJob& running : running_) {
      // A job being published has no process left, and its descriptor would always be ready.
      if (!running.publication) fds.push_back({running.process().poll_fd(), POLLIN, 0});
    }
    if (!running_.empty()) at_most(more_events_ ? milliseconds(0) : options_.poll_interval);
    if (running_.size() < options_.max_running) {
      for (const auto& [id, time] : not_before_) until(time);
    }
  }
  if (stop_deadline_) until(*stop_deadline_);
  if (store_.is_shared()) at_most(kLookAtStoreEvery);

  ::poll(fds.data(), fds.size(), timeout ? static_cast<int>(timeout->count()) : -1);
  eventfd_t ignored = 0;
  (void)::eventfd_read(wake_.get(), &ignored);
}

bool JobSupervisor::Step() {
  std::optional<StopMode> stop;
  {
    const std::lock_guard lock(mutex_);
    stop = stop_;
  }
  if (stop == StopMode::kLeaveJobs || (stop && !supervises_)) return false;
  NotifyOfOthers();
  if (!Supervises()) {
    EndStrayRuns();
    const std::lock_guard lock(mutex_);
    own_.SaveEnded();
    return true;
  }
  if (stop && !stop_deadline_) {
    stop_deadline_ = Clock::now() + options_.stop_grace;
    if (runner_->outlives_server()) {
      std::erase_if(running_, [](const RunningJob& running) { return !running.publication; });
    }
    for (RunningJob& running : running_) running.process().Terminate();
  }

  more_events_ = false;
  for (auto running = running_.begin(); running != running_.end();) {
    ObeyWish(*running);
    IngestEvents(*running);
    NotifyOfGrowth(*running);
    running = FinishIfEnded(*running) ? running_.erase(running) : running + 1;
  }

  if (stop) {
    if (running_.empty()) return false;
    if (Clock::now() < *stop_deadline_) return true;
    spdlog::warn("jobs still running after stop_grace, left to the next server n={}",
                 running_.size());
    return false;
  }
  StartQueuedJobs();
  const std::lock_guard lock(mutex_);
  own_.SaveEnded();
  return true;
}

// Whether this server supervises the jobs; alone, it always does. A replica that has just become
// the supervisor finds the children of the earlier one by their locks.
bool JobSupervisor::Supervises() {
  std::vector<RunningJob> left;  // destroyed without the lock: a publication may wait for it
  const std::lock_guard lock(mutex_);
  const bool has_lease = store_.KeepLease();
  const Clock::time_point now = Clock::now();
  if (has_lease && now >= look_for_left_work_at_) {
    own_.FailLeft();
    look_for_left_work_at_ = store_.is_shared() ? now + kLookForLeftWorkEvery : now.max();
  }
  if (has_lease == supervises_) return supervises_;
  if (has_lease) {
    AdoptRunningJobs();
    if (store_.is_shared()) spdlog::info("job_supervision_taken");
  } else {
    // The children run on. The next supervisor has found them, or will.
    left.swap(running_);
    not_before_.clear();
    ending_.clear();
    may_have_strays_ = true;
    spdlog::warn("job_supervision_lost");
  }
  return supervises_ = has_lease;
}

// The supervisor starts these jobs again in its own directory, so their processes here work for
// nothing.
void JobSupervisor::EndStrayRuns() {
  if (!runner_->is_private() || !may_have_strays_) return;
  std::vector<JobRecord> unfinished;
  {
    const std::lock_guard lock(mutex_);
    unfinished = store_.WithStatus(JobStatus::kRunning);
    // The supervisor may not have started them again yet.
    for (JobRecord& record : store_.WithStatus(JobStatus::kQueued)) {
      unfinished.push_back(std::move(record));
    }
  }
  for (const JobRecord& record : unfinished) {
    if (VerbFor(record.job.type).empty()) continue;
    const std::unique_ptr<JobProcess> stray = runner_->Find(StartOf(record.job), std::nullopt);
    if (!stray) continue;
    spdlog::warn("job_ended_here id={} reason=\"another replica runs it\"", record.job.id);
    stray->Terminate();
  }
  may_have_strays_ = false;
}

// Tells the watchers of this server what another replica may have changed. Logs grow without a
// change of the store, so they are told every time.
void JobSupervisor::NotifyOfOthers() {
  if (!store_.is_shared()) return;
  std::set<std::string> watched = watchers_->WatchedJobs();
  const std::lock_guard lock(mutex_);
  if (!std::exchange(is_store_changed_, false) && supervises_) return;
  changed_.merge(watched);
}

// REQUIRES: mutex_ held, and running_ is empty. It stays empty if this throws: the next step then
// adopts all jobs again.
void JobSupervisor::AdoptRunningJobs() {
  std::vector<RunningJob> found;
  for (JobRecord& record : store_.WithStatus(JobStatus::kRunning)) {
    if (VerbFor(record.job.type).empty()) continue;  // another replica does it
    const std::filesystem::path& dir = record.job.dir;
    std::unique_ptr<JobProcess> process;
    if (std::filesystem::is_directory(dir)) {
      process = runner_->Find(StartOf(record.job), record.process);
    }
    spdlog::info("job found again id={} alive={}", record.job.id, process != nullptr);
    found.emplace_back(record.job.id, dir, process ? std::move(process) : EndedRunOfJob(),
                       record.events_offset);
  }
  running_ = std::move(found);
}

void JobSupervisor::StartQueuedJobs() {
  while (running_.size() < options_.max_running && StartNextJob()) {
  }
}

// Starts the oldest queued job that need not wait; false if there is none.
bool JobSupervisor::StartNextJob() {
  std::vector<JobRecord> queued;
  {
    const std::lock_guard lock(mutex_);
    queued = QueuedForChildren();
  }
  // Drops the entries of cancelled jobs.
  std::erase_if(not_before_, [&](const auto& entry) {
    return std::none_of(queued.begin(), queued.end(),
                        [&](const JobRecord& record) { return record.job.id == entry.first; });
  });
  for (JobRecord& record : queued) {
    const auto wait = not_before_.find(record.job.id);
    if (wait != not_before_.end() && Clock::now() < wait->second) continue;
    not_before_.erase(record.job.id);
    Start(std::move(record));
    return true;
  }
  return false;
}

void JobSupervisor::Start(JobRecord record) {
  const std::string id = record.job.id;
  const std::filesystem::path dir = record.job.dir;
  {
    // The status becomes running before the process exists. If the server is killed in between, the
    // next one looks for a process by run.lock.
    const std::lock_guard lock(mutex_);
    JobStore::Change change(store_, JobStore::Change::By::kSupervisor);
    record = FindRecord(id);
    if (record.job.status != JobStatus::kQueued) return;  // cancelled a moment ago
    record.job.status = JobStatus::kRunning;
    if (!record.job.started_at) record.job.started_at = UnixNow();
    store_.Update(record);
    change.Commit();
    changed_.insert(id);
  }

  std::unique_ptr<JobProcess> process;
  std::optional<Outcome> outcome;
  const std::optional<Error> error = ErrorOf([&] {
    JobStart start = StartOf(record.job);
    {
      const std::lock_guard lock(mutex_);
      start.spec = store_.SpecOf(id);
    }
    process = runner_->Find(start, std::nullopt);
    if (!process) process = runner_->Start(start);
    const std::optional<ProcessIdentity> identity = process->identity();
    spdlog::info("job started id={} pid={} restarts={}", id, identity ? identity->pid : 0,
                 record.restarts);
  });
  if (error) {
    const bool again =
        error->code() == ErrorCode::kUnavailable && record.restarts < options_.max_restarts;
    outcome = Outcome{again ? Outcome::Next::kRestart : Outcome::Next::kFail,
                      {error->what(), "not_started"}};
  }
  running_.emplace_back(id, dir, process ? std::move(process) : EndedRunOfJob(),
                        record.events_offset);
  RunningJob& running = running_.back();
  running.outcome = outcome;
  if (outcome) {
    // Recorded now if the disk allows, otherwise by the next step.
    if (Record(running)) running_.pop_back();
    return;
  }

  const std::lock_guard lock(mutex_);
  JobStore::Change change(store_, JobStore::Change::By::kSupervisor);
  record = FindRecord(id);  // a cancel may have arrived meanwhile
  record.process = running.process().identity();
  store_.Update(record);
  change.Commit();
}

void JobSupervisor::ObeyWish(RunningJob& running) {
  if (running.outcome) return;
  if (!running.is_asked_to_end()) {
    const std::lock_guard lock(mutex_);
    if (FindRecord(running.id()).wish == JobWish::kNone) return;
  }
  running.End(options_.cancel_grace);
}

void JobSupervisor::IngestEvents(RunningJob& running) {
  JobProgress progress;
  const int64_t before = running.events_offset();
  if (running.ReadEvents(progress)) more_events_ = true;
  if (running.events_offset() == before) return;
  if (progress.figures) {
    const std::lock_guard lock(figures_mutex_);
    const int64_t steps = figures_.steps + progress.figures->steps;
    figures_ = *progress.figures;
    figures_.steps = steps;
  }

  const std::lock_guard lock(mutex_);
  JobStore::Change change(store_, JobStore::Change::By::kSupervisor);
  JobRecord record = FindRecord(running.id());
  if (progress.fraction) record.job.progress = *progress.fraction;
  if (progress.checkpoint) record.restarts = 0;
  record.events_offset = running.events_offset();
  store_.Update(record);
  change.Commit();
  // NotifyOfGrowth can miss these bytes: it may have counted them one step before they were read.
  changed_.insert(running.id());
}

void JobSupervisor::CountJobs() {
  JobCounts counts;
  {
    const std::lock_guard lock(mutex_);
    counts = store_.Counts();
  }
  const std::lock_guard lock(figures_mutex_);
  counts_ = std::move(counts);
}

void JobSupervisor::NotifyOfGrowth(RunningJob& running) {
  if (!running.HasGrown()) return;
  const std::lock_guard lock(mutex_);
  changed_.insert(running.id());
}

bool JobSupervisor::FinishIfEnded(RunningJob& running) {
  if (!running.outcome) {
    const auto exit = running.process().Poll();
    if (!exit) return false;
    IngestEvents(running);  // events written between the last read and the end
    Decide(running, *exit);
    // An unpublished job stays running, and the next server reads result.json again.
    if (running.outcome->next == Outcome::Next::kSucceed && !BeginPublishing(running)) return true;
  }
  if (running.publication) {
    if (!running.publication->has_ended()) return false;
    if (!EndPublishing(running)) return true;
  }
  do {
    RemoveWhatIsLeft(running);  // before any reader sees that the job has ended
  } while (!Record(running));
  {
    // The loss keeps its last value, but no tokens are computed any more.
    const std::lock_guard lock(figures_mutex_);
    figures_.tokens_per_second.reset();
  }
  return true;
}

void JobSupervisor::Decide(RunningJob& running, const ExitStatus& exit) {
  EndedRun run = running.ReadEnd(exit);
  run.max_restarts = options_.max_restarts;

  const std::lock_guard lock(mutex_);
  const JobRecord record = FindRecord(running.id());
  // A finished conversion has written its output, so reporting it as cancelled would be false.
  const bool has_converted =
      record.job.type == JobType::kConvert && run.result.state == JobResult::State::kSucceeded;
  run.cancel_requested = record.wish == JobWish::kCancel && !has_converted;
  run.restarts = record.restarts;
  // A stop of the server or a pause does not use up a restart.
  if (stop_ || record.wish == JobWish::kPause) run.max_restarts = std::numeric_limits<int>::max();
  running.outcome = DecideOutcome(run);
  running.result_json = std::move(run.result.result_json);
  // A job that will resume can still be cancelled.
  if (running.outcome->next != Outcome::Next::kRestart) ending_.insert(running.id());
}

// Returns false if the server is stopping.
bool JobSupervisor::BeginPublishing(RunningJob& running) {
  Job job;
  {
    const std::lock_guard lock(mutex_);
    // A stopping server is destroying its engine; the next server publishes into its own.
    if (stop_) return false;
    job = FindRecord(running.id()).job;
  }
  job.progress = 1;
  job.result_json = running.result_json;
  if (!on_succeeded_) return true;
  running.publication = std::make_unique<Publication>(
      [this, job = std::move(job)] { on_succeeded_(job); }, [this] { Wake(); });
  return true;
}

// Returns false if the server is stopping; the next server then publishes the job.
bool JobSupervisor::EndPublishing(RunningJob& running) {
  const std::optional<Error> error = running.publication->error();
  running.publication.reset();
  if (!error) return true;
  if (error->code() == ErrorCode::kCancelled) return false;
  running.outcome = Outcome{
      Outcome::Next::kFail,
      {std::string("the job has ended, but its result could not be published: ") + error->what(),
       "publish_failed"}};
  return true;
}

void JobSupervisor::RemoveWhatIsLeft(const RunningJob& running) {
  RemoveUnfinished(running.dir());
  if (running.outcome->next != Outcome::Next::kCancel || !on_cancelled_) return;
  Job job;
  {
    const std::lock_guard lock(mutex_);
    job = FindRecord(running.id()).job;
  }
  on_cancelled_(job);
}

// Returns false if the outcome has changed meanwhile.
bool JobSupervisor::Record(RunningJob& running) {
  const std::lock_guard lock(mutex_);
  JobStore::Change change(store_, JobStore::Change::By::kSupervisor);
  const Outcome& outcome = *running.outcome;
  JobRecord record = FindRecord(running.id());
  record.process.reset();
  switch (outcome.next) {
    case Outcome::Next::kSucceed:
      record.job.progress = 1;
      record.job.result_json = running.result_json;
      EndJob(record, JobStatus::kSucceeded);
      break;
    case Outcome::Next::kFail:
      record.job.error = outcome.error;
      EndJob(record, JobStatus::kFailed);
      break;
    case Outcome::Next::kCancel:
      EndJob(record, JobStatus::kCancelled);
      break;
    case Outcome::Next::kRestart:
      // A cancel that arrived after the decision found no process to end.
      if (record.wish == JobWish::kCancel) {
        running.outcome->next = Outcome::Next::kCancel;
        return false;
      }
      if (record.wish == JobWish::kPause) {
        record.job.status = JobStatus::kPaused;
        break;
      }
      record.job.status = JobStatus::kQueued;
      if (!stop_) ++record.restarts;
      break;
  }
  record.wish = JobWish::kNone;
  store_.Update(record);
  change.Commit();
  ending_.erase(running.id());
  changed_.insert(running.id());
  if (IsFinished(record.job.status)) {
    LogEnd(record.job);
  } else if (record.job.status == JobStatus::kPaused) {
    spdlog::info("job paused id={}", running.id());
    AppendLogLine(LogFile(running.dir()), "tandem: paused");
  } else if (!stop_) {
    not_before_[running.id()] = Clock::now() + options_.restart_delay;
    spdlog::warn("job interrupted id={} code={} restarts={}", running.id(), outcome.error.code,
                 record.restarts);
    AppendLogLine(LogFile(running.dir()), "tandem: " + outcome.error.message +
                                              "; resuming, restart " +
                                              std::to_string(record.restarts) + " of " +
                                              std::to_string(options_.max_restarts));
  }
  return true;
}

void JobSupervisor::NotifyOfChanges() {
  std::set<std::string> changed;
  {
    const std::lock_guard lock(mutex_);
    changed.swap(changed_);
  }
  if (changed.empty()) return;
  UndoOnFailure(
      [&] {
        for (const std::string& id : changed) watchers_->Notify(id);
        CountJobs();
      },
      [&] {
        // The next step notifies again; a watcher would otherwise miss the end of its job.
        const std::lock_guard lock(mutex_);
        changed_.merge(changed);
      });
}

}  // namespace tandem::server
