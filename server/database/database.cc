#include "server/database/database.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "engine/base/error.h"
#include "server/database/disk_full.h"
#include "server/database/owner_only.h"

namespace tandem::server {
namespace {

constexpr int kApplicationId = 0x54444d4a;  // "TDMJ"
constexpr int kBusyTimeoutMs = 5000;        // for a concurrent sqlite3 shell

constexpr const char* kJobs = R"(
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

constexpr const char* kFiles = R"(
CREATE TABLE files (
  seq         INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of upload
  id          TEXT NOT NULL UNIQUE,
  bytes       INTEGER NOT NULL,
  created_at  INTEGER NOT NULL,
  filename    TEXT NOT NULL,
  purpose     TEXT NOT NULL,
  expires_at  INTEGER
) STRICT;
CREATE INDEX files_by_purpose ON files (purpose, seq);
CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;
)";

// Alternative names of models (/admin/aliases).
constexpr const char* kAliases = R"(
CREATE TABLE aliases (
  name    TEXT PRIMARY KEY,
  target  TEXT NOT NULL
) STRICT;
)";

// The client number of the API key that made a record (ApiKeys::ClientOf); NULL: nobody's, visible
// to every key.
constexpr const char* kOwners = R"(
ALTER TABLE jobs ADD COLUMN owner INTEGER;
ALTER TABLE files ADD COLUMN owner INTEGER;
)";

// `body` is the response object of the API, `input` an array of the items before its answer.
// `events` has one event per line; it is empty unless the response ran in the background.
constexpr const char* kResponses = R"(
CREATE TABLE responses (
  seq          INTEGER PRIMARY KEY AUTOINCREMENT,
  id           TEXT NOT NULL UNIQUE,
  owner        INTEGER,
  created_at   INTEGER NOT NULL,
  is_finished  INTEGER NOT NULL,
  body         TEXT NOT NULL,
  input        TEXT NOT NULL,
  events       TEXT NOT NULL,
  bytes        INTEGER NOT NULL  -- of the three texts
) STRICT;
CREATE INDEX responses_by_age ON responses (created_at);
CREATE INDEX responses_by_bytes ON responses (bytes);
CREATE INDEX unfinished_responses ON responses (id) WHERE is_finished = 0;
)";

// /v1/batches. `record` is JSON; server/batches writes it.
constexpr const char* kBatches = R"(
CREATE TABLE batches (
  seq          INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of creation
  id           TEXT NOT NULL UNIQUE,
  owner        INTEGER,
  is_finished  INTEGER NOT NULL,
  record       TEXT NOT NULL
) STRICT;
CREATE INDEX batches_unfinished ON batches (owner, seq) WHERE is_finished = 0;
)";

constexpr std::array kServerSteps = {kJobs, kFiles, kAliases, kOwners, kResponses, kBatches};

// The system's error of the last failed write to the journal. sqlite3_system_errno loses it.
int JournalErrno(sqlite3* handle) {
  sqlite3_file* journal = nullptr;
  int error_number = 0;
  if (sqlite3_file_control(handle, "main", SQLITE_FCNTL_JOURNAL_POINTER, &journal) == SQLITE_OK &&
      journal != nullptr && journal->pMethods != nullptr) {
    journal->pMethods->xFileControl(journal, SQLITE_FCNTL_LAST_ERRNO, &error_number);
  }
  return error_number;
}

bool IsFullDisk(sqlite3* handle, int rc) {
  if ((rc & 0xFF) == SQLITE_FULL) return true;
  const bool is_io = (rc & 0xFF) == SQLITE_IOERR || (rc & 0xFF) == SQLITE_CANTOPEN;
  if (handle == nullptr || !is_io) return false;
  return IsDiskFull(sqlite3_system_errno(handle)) ||
         (rc == SQLITE_IOERR_WRITE && IsDiskFull(JournalErrno(handle)));
}

[[noreturn]] void ThrowDatabaseError(sqlite3* handle, int rc, const std::filesystem::path& path) {
  const std::string why = handle != nullptr ? sqlite3_errmsg(handle) : sqlite3_errstr(rc);
  if ((rc & 0xFF) == SQLITE_CORRUPT || (rc & 0xFF) == SQLITE_NOTADB) {
    throw Error(ErrorCode::kDataLoss, "database " + path.string() + " is corrupt: " + why +
                                          "; move it away to start with an empty one");
  }
  // SQLite reports only ENOSPC as SQLITE_FULL; an exhausted quota is an I/O error.
  if (IsFullDisk(handle, rc)) ThrowDiskFull();
  throw Error(ErrorCode::kIo, "database " + path.string() + ": " + why);
}

std::string FirstLine(const std::string& text) {
  // quick_check can start with a heading, "*** in database main ***".
  const size_t begin = text.starts_with("***") ? text.find('\n') + 1 : 0;
  return text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace

const Schema& ServerSchema() {
  static constexpr Schema kSchema{kApplicationId, kServerSteps};
  return kSchema;
}

Query::~Query() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

Query& Query::Checked(int rc) {
  if (rc != SQLITE_OK) ThrowDatabaseError(handle_, rc, path_);
  return *this;
}

Query& Query::Bind(int64_t value) {
  return Checked(sqlite3_bind_int64(statement_, ++bound_, value));
}

Query& Query::Bind(double value) {
  return Checked(sqlite3_bind_double(statement_, ++bound_, value));
}

Query& Query::Bind(std::string_view text) {
  // A null pointer would bind NULL.
  return Checked(sqlite3_bind_text64(statement_, ++bound_, text.empty() ? "" : text.data(),
                                     text.size(), SQLITE_STATIC, SQLITE_UTF8));
}

Query& Query::BindNull() { return Checked(sqlite3_bind_null(statement_, ++bound_)); }

bool Query::Next() {
  const int rc = sqlite3_step(statement_);
  if (rc != SQLITE_ROW && rc != SQLITE_DONE) ThrowDatabaseError(handle_, rc, path_);
  column_ = 0;
  return rc == SQLITE_ROW;
}

int64_t Query::Int() { return sqlite3_column_int64(statement_, column_++); }

double Query::Real() { return sqlite3_column_double(statement_, column_++); }

std::string Query::Text() {
  const auto* text = sqlite3_column_text(statement_, column_);
  const auto bytes = static_cast<size_t>(sqlite3_column_bytes(statement_, column_++));
  return text == nullptr ? "" : std::string(reinterpret_cast<const char*>(text), bytes);
}

bool Query::SkipNull() {
  if (sqlite3_column_type(statement_, column_) != SQLITE_NULL) return false;
  ++column_;
  return true;
}

std::optional<int64_t> Query::IntOrNull() {
  return SkipNull() ? std::nullopt : std::optional<int64_t>(Int());
}

std::optional<std::string> Query::TextOrNull() {
  return SkipNull() ? std::nullopt : std::optional<std::string>(Text());
}

void Database::Closer::operator()(sqlite3* handle) const { sqlite3_close(handle); }
void Database::Closer::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }

Database::Database(std::filesystem::path file, const Schema& schema)
    : path_(std::move(file)), schema_(schema) {
  CreateForOwner();
  Open();
  Configure();
  BringUpToDate();
}

// Creates an empty file with mode 0600, which SQLite copies to -wal and -shm. O_EXCL: closing a
// descriptor of an existing database would drop the locks of this process's other connections.
void Database::CreateForOwner() const {
  const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd >= 0) {
    ::close(fd);
    return;
  }
  if (errno == EEXIST) return;
  const int error_number = errno;
  if (IsDiskFull(error_number)) ThrowDiskFull();
  throw Error(ErrorCode::kIo, "could not create database " + path_.string() + ": " +
                                  std::generic_category().message(error_number));
}

void Database::Open() {
  sqlite3* handle = nullptr;
  const int rc = sqlite3_open_v2(
      path_.c_str(), &handle,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
      nullptr);
  handle_.reset(handle);
  if (rc == SQLITE_OK) return;
  const std::string why = handle != nullptr ? sqlite3_errmsg(handle) : sqlite3_errstr(rc);
  throw Error(ErrorCode::kIo, "could not open database " + path_.string() + ": " + why);
}

void Database::Run(const std::string& sql) {
  const int rc = sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (rc != SQLITE_OK) ThrowDatabaseError(handle_.get(), rc, path_);
}

Query Database::Prepare(const std::string& sql) {
  auto& statement = statements_[sql];
  if (!statement) {
    sqlite3_stmt* prepared = nullptr;
    const int rc = sqlite3_prepare_v3(handle_.get(), sql.c_str(), -1, SQLITE_PREPARE_PERSISTENT,
                                      &prepared, nullptr);
    if (rc != SQLITE_OK) ThrowDatabaseError(handle_.get(), rc, path_);
    statement.reset(prepared);
  }
  return Query(handle_.get(), statement.get(), path_);
}

int64_t Database::changes() const { return sqlite3_changes64(handle_.get()); }

int64_t Database::Number(const std::string& sql) {
  Query query = Prepare(sql);
  return query.Next() ? query.Int() : 0;
}

// The README of this room explains each pragma.
void Database::Configure() {
  sqlite3_busy_timeout(handle_.get(), kBusyTimeoutMs);
  Run("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA foreign_keys = ON;");
  Check();
  for (const char* suffix : {"", "-wal", "-shm"}) RestrictToOwner(path_.string() + suffix);
  Run("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;");
}

// Reads only, so that a refused file keeps its contents.
void Database::Check() {
  const int64_t version = Number("PRAGMA user_version");
  const int64_t application = Number("PRAGMA application_id");
  if (version == 0 && Number("SELECT count(*) FROM sqlite_schema") == 0) return;
  if (application != schema_.application_id) {
    throw Error(ErrorCode::kDataLoss,
                path_.string() + " is a database of another program; move it away");
  }
  const auto supported = static_cast<int64_t>(schema_.steps.size());
  if (version > supported) {
    throw Error(ErrorCode::kFailedPrecondition,
                "database " + path_.string() + " has schema version " + std::to_string(version) +
                    ", but this program supports only versions up to " + std::to_string(supported) +
                    "; use a newer program");
  }
  Query query = Prepare("PRAGMA quick_check(1)");
  const std::string verdict = query.Next() ? query.Text() : "no answer";
  if (verdict != "ok") {
    throw Error(ErrorCode::kDataLoss, "database " + path_.string() +
                                          " is corrupt: " + FirstLine(verdict) +
                                          "; move it away to start with an empty one");
  }
}

// Reads the version again within the transaction: another process may have updated the file.
void Database::BringUpToDate() {
  const auto wanted = static_cast<int64_t>(schema_.steps.size());
  if (Number("PRAGMA user_version") == wanted) return;
  Run("BEGIN IMMEDIATE");
  std::string steps;
  for (auto step = static_cast<size_t>(Number("PRAGMA user_version")); step < schema_.steps.size();
       ++step) {
    steps += schema_.steps[step];
  }
  Run(steps + "PRAGMA application_id = " + std::to_string(schema_.application_id) +
      "; PRAGMA user_version = " + std::to_string(wanted) + "; COMMIT;");
}

}  // namespace tandem::server
