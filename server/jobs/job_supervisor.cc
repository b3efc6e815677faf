#include "server/jobs/job_supervisor.h"

#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/unix_time.h"

namespace tandem::server {
namespace {

constexpr size_t kMaxSpecBytes = 1024 * 1024;

std::string NewJobId(JobType type) {
  unsigned char bytes[12];
  TANDEM_CHECK(::getrandom(bytes, sizeof bytes, 0) == static_cast<ssize_t>(sizeof bytes));
  std::string id = type == JobType::kFineTune ? "ftjob-" : "job-";
  for (const unsigned char byte : bytes) {
    id += "0123456789abcdef"[byte >> 4];
    id += "0123456789abcdef"[byte & 15];
  }
  return id;
}

Error NotActive(const JobRecord& record, std::string_view what) {
  return Error(ErrorCode::kFailedPrecondition,
               "job " + record.job.id + " is not active: it is " + std::string(what))
      .WithReason("job_not_active");
}

}  // namespace

JobSupervisor::JobSupervisor(JobStore store, JobSupervisorOptions options, OnSucceeded on_succeeded,
                             OnCancelled on_cancelled)
    : options_(std::move(options)),
      runner_(options_.runner ? options_.runner
                              : std::make_shared<LocalJobRunner>(options_.program)),
      on_succeeded_(std::move(on_succeeded)),
      on_cancelled_(std::move(on_cancelled)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      watchers_(std::make_shared<JobWatchers>()),
      store_(std::move(store)),
      own_(store_) {
  TANDEM_CHECK(options_.max_running > 0);
  if (!wake_) throw Error(ErrorCode::kIo, "could not create an eventfd for the job supervisor");
  Supervises();
  CountJobs();
  thread_ = std::thread([this] { Run(); });
}

JobSupervisor::~JobSupervisor() { Stop(StopMode::kInterruptJobs); }

Job JobSupervisor::Submit(JobType type, std::string_view spec_json) {
  return Submit(type, spec_json, spec_json);
}

Job JobSupervisor::Submit(JobType type, std::string_view request_json, std::string_view spec_json,
                          std::optional<int64_t> owner) {
  if (VerbFor(type).empty()) {
    throw Error(ErrorCode::kUnsupported,
                "jobs of type '" + std::string(NameOf(type)) +
                    "' cannot be submitted: submit train, convert or pipeline")
        .WithParam("type");
  }
  if (spec_json.size() > kMaxSpecBytes || request_json.size() > kMaxSpecBytes) {
    throw Error(ErrorCode::kInvalidArgument, "spec has " + std::to_string(spec_json.size()) +
                                                 " bytes; the limit is " +
                                                 std::to_string(kMaxSpecBytes))
        .WithParam("spec");
  }
  if (!IsBoundedJsonObject(spec_json) || !IsBoundedJsonObject(request_json)) {
    throw Error(ErrorCode::kInvalidArgument, "spec must be a JSON object").WithParam("spec");
  }

  JobRecord record;
  {
    const std::lock_guard lock(mutex_);
    const size_t queued = QueuedForChildren().size();
    if (queued >= options_.max_queued) {
      throw Error(ErrorCode::kUnavailable, "the queue of jobs is full (" + std::to_string(queued) +
                                               " of " + std::to_string(options_.max_queued) + ")");
    }
    record = Create(type, request_json, spec_json, owner);
  }
  spdlog::info("job submitted id={} type={}", record.job.id, NameOf(type));
  Wake();
  return record.job;
}

JobRecord JobSupervisor::Create(JobType type, std::string_view request_json,
                                std::string_view spec_json, std::optional<int64_t> owner) {
  JobRecord record;
  Job& job = record.job;
  job.id = NewJobId(type);
  job.type = type;
  job.created_at = UnixNow();
  job.request_json = request_json;
  job.owner = owner;
  if (stop_) {
    throw Error(ErrorCode::kUnavailable, "the server is stopping").WithReason("shutting_down");
  }
  // The directory comes first, so that a job in the store always has its spec. A crash in between
  // leaves a harmless directory without a row.
  job.dir = store_.JobDir(job.id);
  if (::mkdir(job.dir.c_str(), 0700) != 0) ThrowIo("create", job.dir, errno);
  UndoOnFailure(
      [&] {
        WriteJobFile(SpecFile(job.dir), spec_json);
        SyncDirectory(job.dir.parent_path());
        store_.Create(record, spec_json);
      },
      [&] {
        std::error_code ignored;
        std::filesystem::remove_all(job.dir, ignored);
      });
  changed_.insert(job.id);
  return record;
}

Job JobSupervisor::BeginOwn(JobType type, std::string_view request_json,
                            std::function<void()> on_cancel) {
  TANDEM_CHECK(VerbFor(type).empty());
  JobRecord record;
  {
    const std::lock_guard lock(mutex_);
    record = Create(type, request_json, request_json);
    own_.Begin(record, std::move(on_cancel));
  }
  spdlog::info("job submitted id={} type={}", record.job.id, NameOf(type));
  Wake();
  return record.job;
}

Job JobSupervisor::StartOwn(const std::string& id) {
  Job job;
  {
    const std::lock_guard lock(mutex_);
    job = own_.Start(id);
    changed_.insert(id);
  }
  Wake();
  return job;
}

void JobSupervisor::ReportOwn(const std::string& id, double progress, const std::string& line) {
  {
    const std::lock_guard lock(mutex_);
    own_.Report(id, progress, line);
    changed_.insert(id);
  }
  Wake();
}

Job JobSupervisor::EndOwn(const std::string& id, OwnEnd end) {
  Job job;
  {
    const std::lock_guard lock(mutex_);
    changed_.insert(id);  // first: after the end nothing may fail
    job = own_.End(id, std::move(end));
  }
  LogEnd(job);
  Wake();
  return job;
}

JobRecord JobSupervisor::FindActive(std::string_view id) {
  JobRecord record = FindRecord(id);
  if (IsFinished(record.job.status)) throw NotActive(record, NameOf(record.job.status));
  if (ending_.contains(record.job.id)) throw NotActive(record, "about to end");
  return record;
}

Job JobSupervisor::Pause(std::string_view id) {
  JobRecord record;
  {
    const std::lock_guard lock(mutex_);
    JobStore::Change change(store_, JobStore::Change::By::kAnyServer);
    record = FindActive(id);
    if (VerbFor(record.job.type).empty()) {
      throw Error(ErrorCode::kFailedPrecondition, "job " + record.job.id +
                                                      " cannot be paused: it is a " +
                                                      std::string(NameOf(record.job.type)))
          .WithReason("unsupported_value");
    }
    if (record.job.status == JobStatus::kPaused) throw NotActive(record, "paused");
    if (record.wish == JobWish::kCancel) throw NotActive(record, "being cancelled");
    if (record.job.status == JobStatus::kRunning) {
      record.wish = JobWish::kPause;
    } else {
      record.job.status = JobStatus::kPaused;
    }
    store_.Update(record);
    change.Commit();
    changed_.insert(record.job.id);
  }
  spdlog::info("job pause requested id={}", record.job.id);
  Wake();
  return record.job;
}

Job JobSupervisor::Resume(std::string_view id) {
  JobRecord record;
  {
    const std::lock_guard lock(mutex_);
    JobStore::Change change(store_, JobStore::Change::By::kAnyServer);
    record = FindActive(id);
    if (record.job.status != JobStatus::kPaused) {
      throw Error(ErrorCode::kFailedPrecondition,
                  "job " + record.job.id + " cannot be resumed: it is " +
                      (record.wish == JobWish::kPause
                           ? "being paused, and still writes its checkpoint"
                           : std::string(NameOf(record.job.status)) + ", not paused"))
          .WithReason("job_not_active");
    }
    record.job.status = JobStatus::kQueued;
    record.restarts = 0;
    store_.Update(record);
    change.Commit();
    changed_.insert(record.job.id);
  }
  spdlog::info("job resumed id={}", record.job.id);
  Wake();
  return record.job;
}

Job JobSupervisor::Cancel(std::string_view id) {
  JobRecord record;
  std::function<void()> ask_to_end;
  {
    const std::lock_guard lock(mutex_);
    JobStore::Change change(store_, JobStore::Change::By::kAnyServer);
    record = FindActive(id);
    record.wish = JobWish::kCancel;
    if (own_.Find(record.job.id) != nullptr) {
      ask_to_end = own_.Cancel(record.job.id);
    } else if (VerbFor(record.job.type).empty()) {
      throw Error(ErrorCode::kFailedPrecondition, "job " + record.job.id + " is a " +
                                                      std::string(NameOf(record.job.type)) +
                                                      " of another replica: cancel it there")
          .WithReason("unsupported_value");
    } else if (record.job.status != JobStatus::kRunning) {
      EndJob(record, JobStatus::kCancelled);
    }
    store_.Update(record);
    change.Commit();
    changed_.insert(record.job.id);
  }
  spdlog::info("job cancel requested id={}", record.job.id);
  Wake();
  if (record.job.status == JobStatus::kCancelled && record.job.started_at && on_cancelled_) {
    on_cancelled_(record.job);
  }
  if (ask_to_end) {
    ask_to_end();
    // The work may have ended at once.
    const std::lock_guard lock(mutex_);
    return FindRecord(record.job.id).job;
  }
  return record.job;
}

void JobSupervisor::OnStoreChanged() {
  {
    const std::lock_guard lock(mutex_);
    is_store_changed_ = true;
  }
  Wake();
}

void JobSupervisor::TellModelDeleted(std::string_view id) {
  const std::lock_guard lock(mutex_);
  if (store_.has_own_dir()) return store_.MarkModelDeleted(id);
  if (store_.is_shared()) store_.Touch(id);
}

std::optional<Job> JobSupervisor::Find(std::string_view id) {
  const std::lock_guard lock(mutex_);
  auto record = TryFindRecord(id);
  if (!record) return std::nullopt;
  return std::move(record->job);
}

JobPage JobSupervisor::List(const JobFilter& filter) {
  const std::lock_guard lock(mutex_);
  return store_.List(filter);
}

std::optional<JobRecord> JobSupervisor::TryFindRecord(std::string_view id) {
  if (const JobRecord* own = own_.Find(id)) return *own;
  return store_.Find(id);
}

JobRecord JobSupervisor::FindRecord(std::string_view id) {
  auto record = TryFindRecord(id);
  if (!record) {
    throw Error(ErrorCode::kNotFound, "no job '" + std::string(id) + "'")
        .WithReason("job_not_found");
  }
  return std::move(*record);
}

std::vector<JobRecord> JobSupervisor::QueuedForChildren() {
  std::vector<JobRecord> queued = store_.WithStatus(JobStatus::kQueued);
  std::erase_if(queued, [](const JobRecord& record) { return VerbFor(record.job.type).empty(); });
  return queued;
}

namespace {

JobLog ReadFileOf(const Job& job, const std::filesystem::path& file, int64_t offset,
                  size_t max_bytes) {
  if (offset < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "offset must not be negative, got " + std::to_string(offset))
        .WithParam("offset");
  }
  return {job.status, ReadLogLines(file, offset, max_bytes, IsFinished(job.status))};
}

}  // namespace

JobLog JobSupervisor::ReadLog(std::string_view id, int64_t offset, size_t max_bytes) {
  std::unique_lock lock(mutex_);
  const Job job = FindRecord(id).job;
  lock.unlock();
  return ReadFileOf(job, LogFile(job.dir), offset, max_bytes);
}

JobLog JobSupervisor::ReadEvents(std::string_view id, int64_t offset, size_t max_bytes) {
  std::unique_lock lock(mutex_);
  const Job job = FindRecord(id).job;
  lock.unlock();
  return ReadFileOf(job, EventsFile(job.dir), offset, max_bytes);
}

JobSubscription JobSupervisor::Subscribe(std::string_view id, std::function<void()> callback) {
  const std::lock_guard lock(mutex_);
  return watchers_->Add(FindRecord(id).job.id, std::move(callback));
}

void JobSupervisor::Stop(StopMode mode) {
  {
    const std::lock_guard lock(mutex_);
    if (!stop_) stop_ = mode;
  }
  Wake();
  const std::lock_guard join_lock(join_mutex_);
  if (!thread_.joinable()) return;
  thread_.join();
  // A job whose publication was interrupted stays running in the store; the next server publishes
  // it.
  for (RunningJob& running : running_) running.publication.reset();
}

void JobSupervisor::Wake() {
  // Fails only if the counter is full, and then the thread is awake anyway.
  (void)::eventfd_write(wake_.get(), 1);
}

TrainingFigures JobSupervisor::training_figures() const {
  const std::lock_guard lock(figures_mutex_);
  return figures_;
}

JobCounts JobSupervisor::counts() const {
  const std::lock_guard lock(figures_mutex_);
  return counts_;
}

}  // namespace tandem::server
