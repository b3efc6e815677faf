#include "server/jobs/job_store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <map>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "server/jobs/job_files.h"

namespace tandem::server {
namespace {

constexpr int kSchemaVersion = 1;
constexpr int kApplicationId = 0x54444d4a;  // "TDMJ"
constexpr int kBusyTimeoutMs = 5000;        // somebody may be reading with the sqlite3 shell

constexpr const char* kSchema = R"(
CREATE TABLE jobs (
  seq               INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of submission
  id                TEXT NOT NULL UNIQUE,
  type              TEXT NOT NULL,
  status            TEXT NOT NULL,
  created_at        INTEGER NOT NULL,
  started_at        INTEGER,
  finished_at       INTEGER,
  progress          REAL NOT NULL,
  error_message     TEXT,
  error_code        TEXT,
  request           TEXT NOT NULL,
  result            TEXT,
  pid               INTEGER,
  pid_start_ticks   INTEGER,
  boot_id           TEXT,
  cancel_requested  INTEGER NOT NULL,
  restarts          INTEGER NOT NULL,
  events_offset     INTEGER NOT NULL
) STRICT;
CREATE INDEX jobs_by_status ON jobs (status, seq);
)";

constexpr const char* kColumns =
    "id, type, status, created_at, started_at, finished_at, progress, error_message, error_code, "
    "request, result, pid, pid_start_ticks, boot_id, cancel_requested, restarts, events_offset";

[[noreturn]] void ThrowDatabaseError(sqlite3* handle, int rc, const std::filesystem::path& path) {
  const std::string why = handle != nullptr ? sqlite3_errmsg(handle) : sqlite3_errstr(rc);
  if ((rc & 0xFF) == SQLITE_CORRUPT || (rc & 0xFF) == SQLITE_NOTADB) {
    throw Error(ErrorCode::kDataLoss, "job database " + path.string() + " is corrupt: " + why +
                                          "; move it away to start with an empty list of jobs");
  }
  throw Error(ErrorCode::kIo, "job database " + path.string() + ": " + why);
}

// One run of a prepared statement; leaves it ready for the next.
class Query {
 public:
  Query(sqlite3* handle, sqlite3_stmt* statement, const std::filesystem::path& path)
      : handle_(handle), statement_(statement), path_(path) {}
  ~Query() {
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  // Parameters in the order of the statement's question marks. Texts must outlive the query.
  Query& Bind(int64_t value) { return Checked(sqlite3_bind_int64(statement_, ++bound_, value)); }
  Query& Bind(double value) { return Checked(sqlite3_bind_double(statement_, ++bound_, value)); }
  Query& Bind(std::string_view text) {
    // A null pointer would bind NULL.
    return Checked(sqlite3_bind_text64(statement_, ++bound_, text.empty() ? "" : text.data(),
                                       text.size(), SQLITE_STATIC, SQLITE_UTF8));
  }
  Query& BindNull() { return Checked(sqlite3_bind_null(statement_, ++bound_)); }
  template <class T>
  Query& Bind(const std::optional<T>& value) {
    return value ? Bind(*value) : BindNull();
  }

  bool Next() {
    const int rc = sqlite3_step(statement_);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) ThrowDatabaseError(handle_, rc, path_);
    column_ = 0;
    return rc == SQLITE_ROW;
  }

  // Columns from left to right.
  int64_t Int() { return sqlite3_column_int64(statement_, column_++); }
  double Real() { return sqlite3_column_double(statement_, column_++); }
  std::string Text() {
    const auto* text = sqlite3_column_text(statement_, column_);
    const auto bytes = static_cast<size_t>(sqlite3_column_bytes(statement_, column_++));
    return text == nullptr ? "" : std::string(reinterpret_cast<const char*>(text), bytes);
  }
  bool SkipNull() {
    if (sqlite3_column_type(statement_, column_) != SQLITE_NULL) return false;
    ++column_;
    return true;
  }
  std::optional<int64_t> IntOrNull() {
    return SkipNull() ? std::nullopt : std::optional<int64_t>(Int());
  }
  std::optional<std::string> TextOrNull() {
    return SkipNull() ? std::nullopt : std::optional<std::string>(Text());
  }

 private:
  Query& Checked(int rc) {
    if (rc != SQLITE_OK) ThrowDatabaseError(handle_, rc, path_);
    return *this;
  }

  sqlite3* handle_;
  sqlite3_stmt* statement_;
  const std::filesystem::path& path_;
  int bound_ = 0;
  int column_ = 0;
};

UniqueFd LockDataDir(const std::filesystem::path& data_dir) {
  const std::filesystem::path path = data_dir / "lock";
  auto lock = TryLockFile(path);
  if (!lock) {
    int64_t pid = 0;
    std::ifstream(path) >> pid;
    throw Error(ErrorCode::kFailedPrecondition,
                "data directory " + data_dir.string() + " is in use by another server" +
                    (pid > 0 ? " (process " + std::to_string(pid) + ")" : "") +
                    "; stop it or choose another --data-dir");
  }
  // For that message only; the lock itself is the kernel's.
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(lock->get(), 0) != 0 ||
      ::pwrite(lock->get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    ThrowIo("write", path, errno);
  }
  return std::move(*lock);
}

}  // namespace

// The connection and its prepared statements, which must be freed before it.
struct JobStore::Database {
  explicit Database(std::filesystem::path file) : path(std::move(file)) {
    const int rc = sqlite3_open_v2(
        path.c_str(), &handle,
        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
        nullptr);
    if (rc != SQLITE_OK) {
      const std::string why = handle != nullptr ? sqlite3_errmsg(handle) : sqlite3_errstr(rc);
      sqlite3_close(handle);
      throw Error(ErrorCode::kIo, "could not open job database " + path.string() + ": " + why);
    }
  }
  ~Database() {
    for (const auto& [sql, statement] : statements) sqlite3_finalize(statement);
    sqlite3_close(handle);
  }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void Run(const std::string& sql) {
    const int rc = sqlite3_exec(handle, sql.c_str(), nullptr, nullptr, nullptr);
    if (rc != SQLITE_OK) ThrowDatabaseError(handle, rc, path);
  }

  // Prepares each distinct text once; the room has a handful of them.
  Query Prepare(const std::string& sql) {
    sqlite3_stmt*& statement = statements[sql];
    if (statement == nullptr) {
      const int rc = sqlite3_prepare_v3(handle, sql.c_str(), -1, SQLITE_PREPARE_PERSISTENT,
                                        &statement, nullptr);
      if (rc != SQLITE_OK) ThrowDatabaseError(handle, rc, path);
    }
    return Query(handle, statement, path);
  }

  int64_t Number(const std::string& sql) {
    Query query = Prepare(sql);
    return query.Next() ? query.Int() : 0;
  }

  // Each pragma has its reason in the room's README.
  void Configure() {
    sqlite3_busy_timeout(handle, kBusyTimeoutMs);
    Run("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA foreign_keys = ON;");
    Check();
    Run("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;");
  }

  // Reads only: a file that is refused is left as it was.
  void Check() {
    const int64_t version = Number("PRAGMA user_version");
    const int64_t application = Number("PRAGMA application_id");
    if (version == 0 && Number("SELECT count(*) FROM sqlite_schema") == 0) return;
    if (application != kApplicationId) {
      throw Error(ErrorCode::kDataLoss,
                  path.string() + " is a database, but not one of jobs; move it away");
    }
    if (version > kSchemaVersion) {
      throw Error(ErrorCode::kFailedPrecondition,
                  "job database " + path.string() + " has schema version " +
                      std::to_string(version) + ", and this program knows versions up to " +
                      std::to_string(kSchemaVersion) + "; use the newer program");
    }
    Query query = Prepare("PRAGMA quick_check(1)");
    const std::string verdict = query.Next() ? query.Text() : "no answer";
    if (verdict != "ok") {
      throw Error(ErrorCode::kDataLoss, "job database " + path.string() +
                                            " is corrupt: " + FirstLine(verdict) +
                                            "; move it away to start with an empty list of jobs");
    }
  }

  void CreateSchema() {
    if (Number("PRAGMA user_version") == kSchemaVersion) return;
    Run("BEGIN IMMEDIATE; " + std::string(kSchema) +
        "PRAGMA application_id = " + std::to_string(kApplicationId) +
        "; PRAGMA user_version = " + std::to_string(kSchemaVersion) + "; COMMIT;");
  }

  static std::string FirstLine(const std::string& text) {
    // quick_check begins with a heading, "*** in database main ***".
    const size_t begin = text.starts_with("***") ? text.find('\n') + 1 : 0;
    return text.substr(begin, text.find('\n', begin) - begin);
  }

  std::filesystem::path path;
  sqlite3* handle = nullptr;
  std::map<std::string, sqlite3_stmt*> statements;
};

namespace {

// Reads kColumns, from the column the query stands at.
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
  record.cancel_requested = row.Int() != 0;
  record.restarts = static_cast<int>(row.Int());
  record.events_offset = row.Int();
  job.dir = store.JobDir(job.id);
  return record;
}

// Binds the columns that change, from status to events_offset, in the order of kColumns.
void BindStatus(Query& query, const Job& job) { query.Bind(NameOf(job.status)); }

void BindProgress(Query& query, const Job& job) {
  query.Bind(job.started_at).Bind(job.finished_at).Bind(job.progress);
  if (job.error) {
    query.Bind(std::string_view(job.error->message)).Bind(std::string_view(job.error->code));
  } else {
    query.BindNull().BindNull();
  }
}

void BindSupervision(Query& query, const JobRecord& record) {
  if (record.job.result_json) {
    query.Bind(std::string_view(*record.job.result_json));
  } else {
    query.BindNull();
  }
  if (record.process) {
    query.Bind(int64_t{record.process->pid})
        .Bind(static_cast<int64_t>(record.process->start_ticks))
        .Bind(std::string_view(record.process->boot_id));
  } else {
    query.BindNull().BindNull().BindNull();
  }
  query.Bind(int64_t{record.cancel_requested ? 1 : 0})
      .Bind(int64_t{record.restarts})
      .Bind(record.events_offset);
}

}  // namespace

JobStore JobStore::Open(const std::filesystem::path& data_dir) {
  std::error_code error;
  // Specs may name private things: the directory is its owner's alone, if it is ours to make.
  if (!std::filesystem::exists(data_dir, error) &&
      std::filesystem::create_directories(data_dir, error)) {
    std::filesystem::permissions(data_dir, std::filesystem::perms::owner_all, error);
  }
  if (!error) std::filesystem::create_directories(data_dir / "jobs", error);
  if (error) ThrowIo("create", data_dir / "jobs", error.value());

  UniqueFd lock = LockDataDir(data_dir);
  auto database = std::make_unique<Database>(data_dir / "tandem.db");
  database->Configure();
  database->CreateSchema();
  return JobStore(data_dir, std::move(lock), std::move(database));
}

JobStore::JobStore(std::filesystem::path data_dir, UniqueFd lock,
                   std::unique_ptr<Database> database)
    : data_dir_(std::move(data_dir)), lock_(std::move(lock)), database_(std::move(database)) {}

JobStore::~JobStore() = default;
JobStore::JobStore(JobStore&&) noexcept = default;

std::filesystem::path JobStore::JobDir(std::string_view id) const {
  return data_dir_ / "jobs" / std::string(id);
}

void JobStore::Create(const JobRecord& record) {
  const Job& job = record.job;
  Query query = database_->Prepare("INSERT INTO jobs (" + std::string(kColumns) +
                                   ") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
  query.Bind(std::string_view(job.id)).Bind(NameOf(job.type));
  BindStatus(query, job);
  query.Bind(job.created_at);
  BindProgress(query, job);
  query.Bind(std::string_view(job.request_json));
  BindSupervision(query, record);
  query.Next();
}

void JobStore::Update(const JobRecord& record) {
  Query query = database_->Prepare(
      "UPDATE jobs SET status=?, started_at=?, finished_at=?, progress=?, error_message=?, "
      "error_code=?, result=?, pid=?, pid_start_ticks=?, boot_id=?, cancel_requested=?, "
      "restarts=?, events_offset=? WHERE id=?");
  BindStatus(query, record.job);
  BindProgress(query, record.job);
  BindSupervision(query, record);
  query.Bind(std::string_view(record.job.id));
  query.Next();
  TANDEM_CHECK(sqlite3_changes(database_->handle) == 1);
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
      throw Error(ErrorCode::kInvalidArgument, "'after' names no job: '" + filter.after + "'")
          .WithParam("after");
    }
    before_seq = query.Int();
  }

  // One statement for every filter: a null parameter matches all.
  Query query = database_->Prepare("SELECT " + std::string(kColumns) +
                                   " FROM jobs WHERE seq < ?1 AND (?2 IS NULL OR type = ?2) AND "
                                   "(?3 IS NULL OR status = ?3) ORDER BY seq DESC LIMIT ?4");
  query.Bind(before_seq);
  filter.type ? query.Bind(NameOf(*filter.type)) : query.BindNull();
  filter.status ? query.Bind(NameOf(*filter.status)) : query.BindNull();
  query.Bind(static_cast<int64_t>(filter.limit) + 1);  // one more says whether there are more
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

std::vector<JobRecord> JobStore::WithStatus(JobStatus status) {
  Query query = database_->Prepare("SELECT " + std::string(kColumns) +
                                   " FROM jobs WHERE status=? ORDER BY seq");
  query.Bind(NameOf(status));
  std::vector<JobRecord> records;
  while (query.Next()) records.push_back(ReadRecord(query, *this));
  return records;
}

}  // namespace tandem::server
