#include "server/jobs/job_store.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "server/database/database.h"
#include "server/database/lease.h"
#include "server/database/owner_only.h"
#include "server/database/replica_lease.h"
#include "server/jobs/job_files.h"
#include "server/jobs/portable_spec.h"
#include "server/jobs/process_lock.h"

namespace tandem::server {
namespace {

// A server that is killed is replaced within kLease + kLeaseInterval.
constexpr std::chrono::milliseconds kLease{6000};
constexpr std::chrono::milliseconds kLeaseInterval{1500};

constexpr const char* kColumns =
    "id, type, status, created_at, started_at, finished_at, progress, error_message, error_code, "
    "request, result, pid, pid_start_ticks, boot_id, cancel_requested, restarts, events_offset, "
    "owner, model_deleted";

// The column cancel_requested is older than pausing, hence its name.
JobWish ToWish(int64_t number, const std::string& id) {
  if (number >= 0 && number <= static_cast<int64_t>(JobWish::kPause)) {
    return static_cast<JobWish>(number);
  }
  throw Error(ErrorCode::kDataLoss, "job " + id + " has cancel_requested " +
                                        std::to_string(number) +
                                        ", which this program does not support");
}

// Reads kColumns, starting at the query's current column.
JobRecord ReadRecord(Query& row, const JobStore& store) {
  JobRecord record;
  Job& job = record.job;
  job.id = row.Text();
  const std::string type = row.Text();
  const std::string status = row.Text();
  const auto known_type = ParseJobType(type);
  const auto known_status = ParseJobStatus(status);
  if (!known_type || !known_status) {
    throw Error(ErrorCode::kDataLoss, "job " + job.id + " has type '" + type + "' and status '" +
                                          status + "', which this program does not know");
  }
  job.type = *known_type;
  job.status = *known_status;
  job.created_at = row.Int();
  job.started_at = row.IntOrNull();
  job.finished_at = row.IntOrNull();
  job.progress = row.Real();
  auto error_message = row.TextOrNull();
  const auto error_code = row.TextOrNull();
  if (error_message) job.error = JobError{std::move(*error_message), error_code.value_or("failed")};
  job.request_json = row.Text();
  job.result_json = row.TextOrNull();
  const auto pid = row.IntOrNull();
  const auto start_ticks = row.IntOrNull();
  const auto boot_id = row.TextOrNull();
  if (pid && start_ticks && boot_id) {
    record.process =
        ProcessIdentity{static_cast<pid_t>(*pid), static_cast<uint64_t>(*start_ticks), *boot_id};
  }
  record.wish = ToWish(row.Int(), job.id);
  record.restarts = static_cast<int>(row.Int());
  record.events_offset = row.Int();
  job.owner = row.IntOrNull();
  job.is_model_deleted = row.IntOrNull().value_or(0) != 0;
  job.dir = store.JobDir(job.id);
  return record;
}

// Binds the mutable columns, status to events_offset, in the order of kColumns.
void BindStatus(Query& query, const Job& job) { query.Bind(NameOf(job.status)); }

void BindProgress(Query& query, const Job& job) {
  query.Bind(job.started_at).Bind(job.finished_at).Bind(job.progress);
  const auto of_error = [&](const std::string JobError::*text) {
    return job.error ? std::optional<std::string_view>((*job.error).*text) : std::nullopt;
  };
  query.Bind(of_error(&JobError::message)).Bind(of_error(&JobError::code));
}

void BindSupervision(Query& query, const JobRecord& record) {
  query.Bind(std::optional<std::string_view>(record.job.result_json));
  std::optional<int64_t> pid;
  std::optional<int64_t> start_ticks;
  std::optional<std::string_view> boot_id;
  if (record.process) {
    pid = record.process->pid;
    start_ticks = static_cast<int64_t>(record.process->start_ticks);
    boot_id = record.process->boot_id;
  }
  query.Bind(pid).Bind(start_ticks).Bind(boot_id);
  query.Bind(static_cast<int64_t>(record.wish))
      .Bind(int64_t{record.restarts})
      .Bind(record.events_offset);
}

// Uploads and specs can be private: only the owner may enter a new directory.
void MakeForOwner(const std::filesystem::path& dir) {
  std::error_code error;
  if (std::filesystem::exists(dir, error)) return;
  MakeDirectories(dir);
  std::filesystem::permissions(dir, std::filesystem::perms::owner_all, error);
  if (error) ThrowIo("create", dir, error.value());
}

// Names that a server creates in its data directory, and the one that mkfs creates in a volume.
bool IsDataDirEntry(std::string_view name) {
  return name == "lock" || name == "jobs" || name == "files" || name == "models" ||
         name == "batches" || name == "blobs" || name == "adapters" || name == "lost+found" ||
         name.starts_with("adapters.lock") || name.starts_with("tandem.db") ||
         name.starts_with("keys.db");
}

bool IsJobDirEntry(std::string_view name) {
  return name.starts_with("job-") || name.starts_with("ftjob-");
}

}  // namespace

JobStore JobStore::Open(const std::filesystem::path& data_dir, const DatabaseSource& shared,
                        const std::string& replica, DataDir kind) {
  const std::filesystem::path jobs_dir = data_dir / "jobs";
  MakeForOwner(data_dir);
  const std::string what = "data directory " + data_dir.string();
  const bool has_own_dir = kind == DataDir::kOwn;
  const char* advice = has_own_dir ? "with --blob-store every replica needs a --data-dir of its own"
                                   : "stop that server, or choose another --data-dir; servers with "
                                     "the same --database can share one";
  UniqueFd lock = shared.is_shared() && !has_own_dir
                      ? LockForReplicas(data_dir / "lock", what)
                      : LockForThisProcess(data_dir / "lock", what, advice, WithoutLocks::kRefuse);
  auto database = std::make_unique<Database>(InDataDir(shared, data_dir));
  MakeForOwner(jobs_dir);
  // After the lock and the database have shown that no other program uses the directory.
  RestrictDirectoryToOwner(data_dir, IsDataDirEntry);
  RestrictDirectoryToOwner(jobs_dir, IsJobDirEntry);
  JobStore store(data_dir, std::move(lock), std::move(database));
  store.has_own_dir_ = has_own_dir;
  if (shared.is_shared()) {
    TANDEM_CHECK(!replica.empty());
    store.replica_ = replica;
    store.lease_ = std::make_unique<Lease>(*store.database_, "jobs", replica);
  }
  return store;
}

JobStore::JobStore(std::filesystem::path data_dir, UniqueFd lock,
                   std::unique_ptr<Database> database)
    : data_dir_(std::move(data_dir)), lock_(std::move(lock)), database_(std::move(database)) {}

JobStore::~JobStore() = default;
JobStore::JobStore(JobStore&&) noexcept = default;

bool JobStore::KeepLease() {
  if (!lease_) return true;
  const auto now = std::chrono::steady_clock::now();
  if (now < lease_due_) return lease_->is_held();
  lease_due_ = now + kLeaseInterval;
  return lease_->TakeOrKeep(kLease);
}

void JobStore::ReleaseLease() {
  if (lease_) lease_->Release();
}

JobStore::Change::Change(JobStore& store, By by)
    : transaction_(std::make_unique<Transaction>(*store.database_, "jobs")) {
  if (by == By::kSupervisor && store.lease_) store.lease_->Require();
}

JobStore::Change::~Change() = default;

void JobStore::Change::Commit() { transaction_->Commit(); }

std::filesystem::path JobStore::JobDir(std::string_view id) const {
  return data_dir_ / "jobs" / std::string(id);
}

void JobStore::Create(const JobRecord& record, std::string_view spec_json) {
  std::optional<std::string> spec;
  if (has_own_dir_) spec = PortableSpec(spec_json, data_dir_);
  counts_.reset();
  const Job& job = record.job;
  Query query =
      database_->Prepare("INSERT INTO jobs (" + std::string(kColumns) +
                         ", replica, spec) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,NULL,?,?)");
  query.Bind(std::string_view(job.id)).Bind(NameOf(job.type));
  BindStatus(query, job);
  query.Bind(job.created_at);
  BindProgress(query, job);
  query.Bind(std::string_view(job.request_json));
  BindSupervision(query, record);
  query.Bind(job.owner).Bind(std::optional<std::string_view>(replica_));
  query.Bind(std::optional<std::string_view>(spec));
  query.Next();
}

std::string JobStore::SpecOf(std::string_view id) {
  if (!has_own_dir_) return "";
  Query query = database_->Prepare("SELECT spec FROM jobs WHERE id=?");
  query.Bind(id);
  if (!query.Next()) return "";
  return LocalSpec(query.TextOrNull().value_or(""), data_dir_);
}

void JobStore::MarkModelDeleted(std::string_view id) {
  Query query = database_->Prepare("UPDATE jobs SET model_deleted=1 WHERE id=?");
  query.Bind(id);
  query.Next();
}

void JobStore::Update(const JobRecord& record) {
  if (counts_) {
    Query before = database_->Prepare("SELECT status FROM jobs WHERE id=?");
    before.Bind(std::string_view(record.job.id));
    if (!before.Next() || before.Text() != NameOf(record.job.status)) counts_.reset();
  }
  Query query = database_->Prepare(
      "UPDATE jobs SET status=?, started_at=?, finished_at=?, progress=?, error_message=?, "
      "error_code=?, result=?, pid=?, pid_start_ticks=?, boot_id=?, cancel_requested=?, "
      "restarts=?, events_offset=? WHERE id=?");
  BindStatus(query, record.job);
  BindProgress(query, record.job);
  BindSupervision(query, record);
  query.Bind(std::string_view(record.job.id));
  query.Next();
  TANDEM_CHECK(database_->changes() == 1);
}

std::optional<JobRecord> JobStore::Find(std::string_view id) {
  Query query = database_->Prepare("SELECT " + std::string(kColumns) + " FROM jobs WHERE id=?");
  query.Bind(id);
  if (!query.Next()) return std::nullopt;
  return ReadRecord(query, *this);
}

JobPage JobStore::List(const JobFilter& filter) {
  TANDEM_CHECK(filter.limit > 0);
  int64_t before_seq = INT64_MAX;
  if (!filter.after.empty()) {
    Query query = database_->Prepare("SELECT seq FROM jobs WHERE id=?");
    query.Bind(std::string_view(filter.after));
    if (!query.Next()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "after must be the id of a job, got '" + filter.after + "'")
          .WithParam("after");
    }
    before_seq = query.Int();
  }

  // One statement for every filter: a null parameter matches all.
  Query query = database_->Prepare("SELECT " + std::string(kColumns) +
                                   " FROM jobs WHERE seq < ?1 AND (?2 IS NULL OR type = ?2) AND "
                                   "(?3 IS NULL OR status = ?3) AND (?5 IS NULL OR owner IS NULL "
                                   "OR owner = ?5) ORDER BY seq DESC LIMIT ?4");
  query.Bind(before_seq);
  query.Bind(filter.type ? std::optional(NameOf(*filter.type)) : std::nullopt);
  query.Bind(filter.status ? std::optional(NameOf(*filter.status)) : std::nullopt);
  query.Bind(static_cast<int64_t>(filter.limit) + 1);  // one extra row tells whether more exist
  query.Bind(filter.viewer);
  JobPage page;
  while (query.Next()) {
    if (page.jobs.size() == filter.limit) {
      page.has_more = true;
      break;
    }
    page.jobs.push_back(ReadRecord(query, *this).job);
  }
  return page;
}

std::vector<JobRecord> JobStore::Read(const std::string& condition, JobStatus status) {
  Query query = database_->Prepare("SELECT " + std::string(kColumns) + " FROM jobs WHERE status=?" +
                                   condition + " ORDER BY seq");
  query.Bind(NameOf(status));
  std::vector<JobRecord> records;
  while (query.Next()) records.push_back(ReadRecord(query, *this));
  return records;
}

std::vector<JobRecord> JobStore::WithStatus(JobStatus status) { return Read("", status); }

std::vector<JobRecord> JobStore::LeftWithStatus(JobStatus status) {
  return Read(std::string(" AND ") + kReplicaIsGone, status);
}

void JobStore::Touch(std::string_view id) {
  Query query = database_->Prepare("UPDATE jobs SET progress = progress WHERE id=?");
  query.Bind(id);
  query.Next();
}

const JobCounts& JobStore::Counts() {
  if (counts_ && !is_shared()) return *counts_;  // other replicas change the table too
  Query query = database_->Prepare("SELECT type, status, COUNT(*) FROM jobs GROUP BY type, status");
  JobCounts counts;
  while (query.Next()) {
    std::string type = query.Text();
    std::string status = query.Text();
    counts[{std::move(type), std::move(status)}] = query.Int();
  }
  return counts_.emplace(std::move(counts));
}

}  // namespace tandem::server
