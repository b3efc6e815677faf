#include "server/database/sqlite_connection.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/base/error.h"
#include "server/database/disk_full.h"
#include "server/database/owner_only.h"

namespace tandem::server {
namespace {

constexpr int kBusyTimeoutMs = 5000;  // for a concurrent sqlite3 shell

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

// {now_ms}: julianday has a precision of a millisecond.
std::string SqliteStatement(std::string sql) {
  constexpr std::string_view kClockWord = "{now_ms}";
  constexpr std::string_view kClockExpression =
      "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)";
  for (size_t at = 0; (at = sql.find(kClockWord, at)) != std::string::npos;
       at += kClockExpression.size()) {
    sql.replace(at, kClockWord.size(), kClockExpression);
  }
  return sql;
}

// Resets the statement on destruction.
class SqliteRows : public Rows {
 public:
  SqliteRows(sqlite3* handle, sqlite3_stmt* statement, const std::filesystem::path& path)
      : handle_(handle), statement_(statement), path_(path) {}
  ~SqliteRows() override {
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }

  void Bind(std::span<const BoundValue> values) {
    int index = 0;
    for (const BoundValue& value : values) {
      const int rc = BindOne(++index, value);
      if (rc != SQLITE_OK) ThrowDatabaseError(handle_, rc, path_);
    }
  }

  bool Next() override {
    const int rc = sqlite3_step(statement_);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) ThrowDatabaseError(handle_, rc, path_);
    return rc == SQLITE_ROW;
  }
  bool IsNull(int column) const override {
    return sqlite3_column_type(statement_, column) == SQLITE_NULL;
  }
  int64_t Int(int column) const override { return sqlite3_column_int64(statement_, column); }
  double Real(int column) const override { return sqlite3_column_double(statement_, column); }
  std::string Text(int column) const override {
    const auto* text = sqlite3_column_text(statement_, column);
    const auto bytes = static_cast<size_t>(sqlite3_column_bytes(statement_, column));
    return text == nullptr ? "" : std::string(reinterpret_cast<const char*>(text), bytes);
  }

 private:
  int BindOne(int index, const BoundValue& value) {
    if (value.is_null) return sqlite3_bind_null(statement_, index);
    switch (value.type) {
      case BoundValue::Type::kInt:
        return sqlite3_bind_int64(statement_, index, value.integer);
      case BoundValue::Type::kReal:
        return sqlite3_bind_double(statement_, index, value.real);
      case BoundValue::Type::kText:
        break;
    }
    // A null pointer would bind NULL.
    return sqlite3_bind_text64(statement_, index, value.text.empty() ? "" : value.text.data(),
                               value.text.size(), SQLITE_STATIC, SQLITE_UTF8);
  }

  sqlite3* handle_;
  sqlite3_stmt* statement_;
  const std::filesystem::path& path_;
};

}  // namespace

void SqliteConnection::Closer::operator()(sqlite3* handle) const { sqlite3_close(handle); }
void SqliteConnection::Closer::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

SqliteConnection::SqliteConnection(std::filesystem::path file, const Schema& schema)
    : path_(std::move(file)), schema_(schema) {
  CreateForOwner();
  Open();
  Configure();
  BringUpToDate();
}

SqliteConnection::~SqliteConnection() = default;

// Creates an empty file with mode 0600, which SQLite copies to -wal and -shm. O_EXCL: closing a
// descriptor of an existing database would drop the locks of this process's other connections.
void SqliteConnection::CreateForOwner() const {
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

void SqliteConnection::Open() {
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

void SqliteConnection::Run(const std::string& sql) {
  const int rc = sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (rc != SQLITE_OK) ThrowDatabaseError(handle_.get(), rc, path_);
}

std::unique_ptr<Rows> SqliteConnection::Execute(const std::string& sql,
                                                std::span<const BoundValue> values) {
  auto& statement = statements_[sql];
  if (!statement) {
    const std::string text = SqliteStatement(sql);
    sqlite3_stmt* prepared = nullptr;
    const int rc = sqlite3_prepare_v3(handle_.get(), text.c_str(), -1, SQLITE_PREPARE_PERSISTENT,
                                      &prepared, nullptr);
    if (rc != SQLITE_OK) ThrowDatabaseError(handle_.get(), rc, path_);
    statement.reset(prepared);
  }
  auto rows = std::make_unique<SqliteRows>(handle_.get(), statement.get(), path_);
  rows->Bind(values);
  return rows;
}

int64_t SqliteConnection::changes() const { return sqlite3_changes64(handle_.get()); }

// SQLite has one writer at a time, whatever its subject.
void SqliteConnection::Begin(std::string_view) { Run("BEGIN IMMEDIATE"); }

void SqliteConnection::Commit() { Run("COMMIT"); }

void SqliteConnection::Rollback() noexcept {
  // SQLite itself rolls back after some errors, such as a full disk.
  if (sqlite3_get_autocommit(handle_.get()) == 0) {
    sqlite3_exec(handle_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
}

int64_t SqliteConnection::ChangeCount(std::string_view) { return Number("PRAGMA data_version"); }

int64_t SqliteConnection::Number(const std::string& sql) {
  const std::unique_ptr<Rows> rows = Execute(sql, {});
  return rows->Next() ? rows->Int(0) : 0;
}

// The README of this room explains each pragma.
void SqliteConnection::Configure() {
  sqlite3_busy_timeout(handle_.get(), kBusyTimeoutMs);
  Run("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA foreign_keys = ON;");
  Check();
  for (const char* suffix : {"", "-wal", "-shm"}) RestrictToOwner(path_.string() + suffix);
  Run("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;");
}

// Reads only, so that a refused file keeps its contents.
void SqliteConnection::Check() {
  // Tables first: another opener may make them meanwhile, in one transaction with both numbers.
  const bool is_empty = Number("SELECT count(*) FROM sqlite_schema") == 0;
  const int64_t version = Number("PRAGMA user_version");
  const int64_t application = Number("PRAGMA application_id");
  if (version == 0 && is_empty) return;
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
  const std::unique_ptr<Rows> rows = Execute("PRAGMA quick_check(1)", {});
  const std::string verdict = rows->Next() ? rows->Text(0) : "no answer";
  if (verdict != "ok") {
    throw Error(ErrorCode::kDataLoss, "database " + path_.string() +
                                          " is corrupt: " + FirstLine(verdict) +
                                          "; move it away to start with an empty one");
  }
}

// Reads the version again within the transaction: another process may have updated the file.
void SqliteConnection::BringUpToDate() {
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
