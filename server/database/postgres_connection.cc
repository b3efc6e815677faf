#include "server/database/postgres_connection.h"

#include <libpq-fe.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/io/fnv1a.h"
#include "server/database/database_unavailable.h"
#include "server/database/disk_full.h"
#include "server/database/postgres_sql.h"

namespace tandem::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{2000};          // of a statement without a connection
constexpr milliseconds kPatienceAtStart{10000};  // the database may start at the same time
constexpr milliseconds kFirstPause{50};
constexpr milliseconds kLongestPause{500};
constexpr milliseconds kRest{1000};  // after a failure: requests fail at once meanwhile

// OIDs of built-in types, which never change.
constexpr Oid kInt8 = 20;
constexpr Oid kFloat8 = 701;
constexpr Oid kText = 25;

// A dead host is noticed within about ten seconds, by these settings of TCP.
constexpr std::pair<const char*, const char*> kParameters[] = {
    {"connect_timeout", "2"},     {"client_encoding", "UTF8"},  {"application_name", "tandem"},
    {"keepalives_idle", "5"},     {"keepalives_interval", "2"}, {"keepalives_count", "3"},
    {"tcp_user_timeout", "10000"}};

// The triggers of tables that other replicas follow (ChangeFeed). One row counts for the replicas
// that poll.
constexpr const char* kFollowChanges = R"(
CREATE TABLE IF NOT EXISTS tandem_changes (subject TEXT PRIMARY KEY, count BIGINT NOT NULL);
CREATE OR REPLACE FUNCTION tandem_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tandem_changes AS c (subject, count) VALUES (TG_TABLE_NAME, 1)
    ON CONFLICT (subject) DO UPDATE SET count = c.count + 1;
  PERFORM pg_notify('tandem', TG_TABLE_NAME);
  RETURN NULL;
END $$;
)";
constexpr const char* kFollowedTables[] = {"jobs", "aliases", "adapters", "batches", "api_keys"};

// The key of an advisory lock, the same in every replica.
int64_t LockKey(std::string_view subject) {
  return static_cast<int64_t>(engine::Fnv1a::Of(subject));
}

std::string FirstLineOf(std::string text) {
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

Error Unavailable(const std::string& why) {
  return Error(ErrorCode::kUnavailable,
               "the server's database is not available: " + why + "; try again later")
      .WithReason(kDatabaseUnavailableReason);
}

std::string_view StateOf(const PGresult* result) {
  const char* state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
  return state == nullptr ? "" : state;
}

bool IsRead(std::string_view sql) { return sql.starts_with("SELECT "); }

// All rows of a result, which PostgreSQL sends as texts.
class PostgresRows : public Rows {
 public:
  using Deleter = void (*)(PGresult*);
  explicit PostgresRows(std::unique_ptr<PGresult, Deleter> result) : result_(std::move(result)) {}

  bool Next() override { return ++row_ < PQntuples(result_.get()); }
  bool IsNull(int column) const override { return PQgetisnull(result_.get(), row_, column) != 0; }
  int64_t Int(int column) const override {
    const std::string_view text = View(column);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    TANDEM_CHECK(IsNull(column) || (error == std::errc() && end == text.data() + text.size()));
    return value;
  }
  double Real(int column) const override { return std::strtod(View(column).data(), nullptr); }
  std::string Text(int column) const override { return std::string(View(column)); }

 private:
  std::string_view View(int column) const {
    return {PQgetvalue(result_.get(), row_, column),
            static_cast<size_t>(PQgetlength(result_.get(), row_, column))};
  }

  const std::unique_ptr<PGresult, Deleter> result_;
  int row_ = -1;
};

// The parameters of PQexecParams, as texts.
struct Parameters {
  std::vector<Oid> types;
  std::vector<std::string> texts;
  std::vector<const char*> values;

  explicit Parameters(std::span<const BoundValue> bound) {
    texts.reserve(bound.size());
    for (const BoundValue& value : bound) {
      types.push_back(value.type == BoundValue::Type::kInt    ? kInt8
                      : value.type == BoundValue::Type::kReal ? kFloat8
                                                              : kText);
      texts.push_back(TextOf(value));
      values.push_back(value.is_null ? nullptr : texts.back().c_str());
    }
  }

  static std::string TextOf(const BoundValue& value) {
    switch (value.type) {
      case BoundValue::Type::kInt:
        return std::to_string(value.integer);
      case BoundValue::Type::kReal: {
        std::array<char, 64> text;
        const auto end = std::to_chars(text.data(), text.data() + text.size(), value.real).ptr;
        return {text.data(), end};
      }
      case BoundValue::Type::kText:
        break;
    }
    return PostgresText(value.text);
  }
};

struct OptionsDeleter {
  void operator()(PQconninfoOption* options) const { PQconninfoFree(options); }
};

}  // namespace

void CheckDatabaseUrl(const std::string& url) {
  if (!url.starts_with("postgres://") && !url.starts_with("postgresql://")) {
    throw Error(ErrorCode::kInvalidArgument,
                "--database must be postgres://USER@HOST:PORT/DATABASE");
  }
  // libpq's message would repeat the URL.
  const std::unique_ptr<PQconninfoOption, OptionsDeleter> options(
      PQconninfoParse(url.c_str(), nullptr));
  if (!options) {
    throw Error(ErrorCode::kInvalidArgument,
                "--database is no valid URL: postgres://USER@HOST:PORT/DATABASE");
  }
  for (const PQconninfoOption* one = options.get(); one->keyword != nullptr; ++one) {
    if (std::string_view(one->keyword) == "password" && one->val != nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--database must not contain a password, which the list of processes would "
                  "show: use --database-password-file, PGPASSWORD or ~/.pgpass");
    }
  }
}

void PostgresConnection::Closer::operator()(pg_conn* connection) const { PQfinish(connection); }
void PostgresConnection::Closer::operator()(pg_result* result) const { PQclear(result); }

PostgresConnection::PostgresConnection(const DatabaseSource& source, const Schema& schema)
    : source_(source) {
  CheckDatabaseUrl(source_.url);
  Connect(kPatienceAtStart);
  BringUpToDate(schema);
}

PostgresConnection::~PostgresConnection() = default;

bool PostgresConnection::TryConnect() {
  // The URL counts as `dbname`; later words override those in it.
  std::vector<const char*> words = {"dbname"};
  std::vector<const char*> values = {source_.url.c_str()};
  for (const auto& [word, value] : kParameters) {
    words.push_back(word);
    values.push_back(value);
  }
  if (!source_.password.empty()) {
    words.push_back("password");
    values.push_back(source_.password.c_str());
  }
  words.push_back(nullptr);
  values.push_back(nullptr);
  connection_.reset(PQconnectdbParams(words.data(), values.data(), /*expand_dbname=*/1));
  if (PQstatus(connection_.get()) != CONNECTION_OK) {
    error_ = FirstLineOf(PQerrorMessage(connection_.get()));
    connection_.reset();
    return false;
  }
  // A notice ("relation exists already") would go to standard error. One of class 57 on an idle
  // connection announces its end: a shutdown, or an administrator's order.
  is_ending_ = false;
  PQsetNoticeReceiver(
      connection_.get(),
      [](void* is_ending, const PGresult* notice) {
        if (StateOf(notice).starts_with("57P")) *static_cast<bool*>(is_ending) = true;
      },
      &is_ending_);
  const Result set(PQexec(connection_.get(),
                          "SET statement_timeout = '30s'; SET lock_timeout = '10s'; "
                          "SET idle_in_transaction_session_timeout = '60s'"));
  if (PQresultStatus(set.get()) == PGRES_COMMAND_OK) return true;
  error_ = FirstLineOf(PQerrorMessage(connection_.get()));
  connection_.reset();
  return false;
}

// Bounded: a request must not wait for a database that does not come back.
void PostgresConnection::Connect(milliseconds patience) {
  if (Clock::now() < not_before_) throw Unavailable(error_);
  const Clock::time_point deadline = Clock::now() + patience;
  milliseconds pause = kFirstPause;
  while (!TryConnect()) {
    if (Clock::now() + pause >= deadline) {
      not_before_ = Clock::now() + kRest;
      throw Unavailable(error_);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  is_listening_ = false;
  if (!error_.empty()) spdlog::info("database_connected_again");
  error_.clear();
}

// A restarted database has closed the idle connection. Noticed before a statement is sent, this
// costs the caller nothing.
void PostgresConnection::DropIfEnded() {
  if (!connection_) return;
  pollfd socket = {PQsocket(connection_.get()), POLLIN, 0};
  if (socket.fd >= 0 && ::poll(&socket, 1, 0) == 0) return;
  // PQisBusy reads the notices among the input.
  if (PQconsumeInput(connection_.get()) == 1 && PQisBusy(connection_.get()) == 0 && !is_ending_ &&
      PQstatus(connection_.get()) == CONNECTION_OK) {
    return;
  }
  error_ = "the connection ended";
  connection_.reset();
}

void PostgresConnection::Throw(pg_result* result) {
  const std::string state(StateOf(result));
  const char* primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
  const std::string why =
      primary != nullptr ? std::string(primary) : FirstLineOf(PQerrorMessage(connection_.get()));
  if (PQstatus(connection_.get()) != CONNECTION_OK) {
    error_ = "the connection ended";
    connection_.reset();
    throw Unavailable("the connection ended during a change, which may have been stored (" + why +
                      ")");
  }
  if (state == "53100") ThrowDiskFull();
  // Connections, resources, shutdowns, locks and timeouts, a database that only reads.
  for (const std::string_view prefix : {"08", "53", "57P", "57014", "55P03", "40", "25006"}) {
    if (state.starts_with(prefix)) throw Unavailable(why);
  }
  throw Error(ErrorCode::kIo, "database error " + state + ": " + why);
}

PostgresConnection::Result PostgresConnection::Send(const std::string& sql,
                                                    std::span<const BoundValue> values) {
  if (!is_in_transaction_) {
    DropIfEnded();
    if (!connection_) Connect(kPatience);
  } else if (!connection_) {
    throw Unavailable("the connection ended during a transaction");
  }
  const std::string text = PostgresStatement(sql);
  const Parameters parameters(values);
  for (int attempt = 0;; ++attempt) {
    Result result(PQexecParams(connection_.get(), text.c_str(), static_cast<int>(values.size()),
                               parameters.types.data(), parameters.values.data(), nullptr, nullptr,
                               /*resultFormat=*/0));
    const ExecStatusType status = PQresultStatus(result.get());
    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK) return result;
    const bool is_lost = PQstatus(connection_.get()) != CONNECTION_OK;
    // 57P01: an administrator's shutdown has undone the statement.
    const bool is_undone = IsRead(sql) || StateOf(result.get()) == "57P01";
    if (!is_lost || !is_undone || is_in_transaction_ || attempt > 0) Throw(result.get());
    error_ = "the connection ended";
    Connect(kPatience);
  }
}

std::unique_ptr<Rows> PostgresConnection::Execute(const std::string& sql,
                                                  std::span<const BoundValue> values) {
  Result result = Send(sql, values);
  const std::string_view changed = PQcmdTuples(result.get());
  if (!IsRead(sql)) {
    changes_ = 0;
    std::from_chars(changed.data(), changed.data() + changed.size(), changes_);
  }
  return std::make_unique<PostgresRows>(
      std::unique_ptr<PGresult, PostgresRows::Deleter>(result.release(), PQclear));
}

// Several statements, which have no parameters.
void PostgresConnection::Run(const std::string& sql) {
  const Result result(PQexec(connection_.get(), sql.c_str()));
  const ExecStatusType status = PQresultStatus(result.get());
  if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK) Throw(result.get());
}

void PostgresConnection::Begin(std::string_view subject) {
  TANDEM_CHECK(!is_in_transaction_);
  Send("BEGIN", {});
  is_in_transaction_ = true;
  const BoundValue key = {.type = BoundValue::Type::kInt, .integer = LockKey(subject)};
  UndoOnFailure([&] { Send("SELECT pg_advisory_xact_lock(?)", {&key, 1}); }, [&] { Rollback(); });
}

void PostgresConnection::Commit() {
  const Result result = Send("COMMIT", {});
  is_in_transaction_ = false;
  // PostgreSQL answers so after a failed statement, without an error.
  if (std::string_view(PQcmdStatus(result.get())) == "ROLLBACK") {
    throw Error(ErrorCode::kInternal, "a failed transaction was committed");
  }
}

std::vector<std::string> PostgresConnection::WaitForChanges(milliseconds timeout, int wake_fd) {
  // Executes on a new connection, if the old one has ended.
  if (!connection_ || !is_listening_) {
    Send("LISTEN tandem", {});
    is_listening_ = true;
  }
  pollfd sockets[] = {{PQsocket(connection_.get()), POLLIN, 0}, {wake_fd, POLLIN, 0}};
  ::poll(sockets, std::size(sockets), static_cast<int>(timeout.count()));
  std::vector<std::string> subjects;
  if (PQconsumeInput(connection_.get()) == 0) {
    error_ = "the connection ended";
    connection_.reset();
    is_listening_ = false;
    return subjects;
  }
  struct Freer {
    void operator()(PGnotify* notice) const { PQfreemem(notice); }
  };
  while (const std::unique_ptr<PGnotify, Freer> notice{PQnotifies(connection_.get())}) {
    subjects.emplace_back(notice->extra);
  }
  return subjects;
}

void PostgresConnection::Rollback() noexcept {
  is_in_transaction_ = false;
  if (!connection_) return;
  const Result result(PQexec(connection_.get(), "ROLLBACK"));
  if (PQresultStatus(result.get()) != PGRES_COMMAND_OK) connection_.reset();
}

int64_t PostgresConnection::ChangeCount(std::string_view table) {
  const BoundValue subject = {.type = BoundValue::Type::kText, .text = table};
  const auto rows = Execute("SELECT count FROM tandem_changes WHERE subject = ?", {&subject, 1});
  return rows->Next() ? rows->Int(0) : 0;
}

// The lock comes first: two replicas may start together.
void PostgresConnection::BringUpToDate(const Schema& schema) {
  Run("SET client_min_messages = warning");
  Begin("tandem_schema");
  const auto number = [&](const std::string& sql) {
    const auto rows = Execute(sql, {});
    return rows->Next() ? rows->Int(0) : 0;
  };
  Run("CREATE TABLE IF NOT EXISTS tandem_schema (name TEXT PRIMARY KEY, version BIGINT NOT NULL)");
  const std::string name = "'" + std::string(schema.name) + "'";
  const int64_t version = number("SELECT version FROM tandem_schema WHERE name = " + name);
  const auto supported = static_cast<int64_t>(schema.steps.size());
  if (version > supported) {
    throw Error(ErrorCode::kFailedPrecondition,
                "the database has schema version " + std::to_string(version) +
                    ", but this program supports only versions up to " + std::to_string(supported) +
                    "; use a newer program");
  }
  if (version < supported) {
    Run("SET LOCAL statement_timeout = 0");
    for (auto step = static_cast<size_t>(version); step < schema.steps.size(); ++step) {
      Run(PostgresSchemaStep(schema.steps[step]));
    }
    Run(kFollowChanges);
    for (const std::string table : kFollowedTables) {
      const std::string regclass = "SELECT count(*) WHERE to_regclass('" + table + "') IS NOT NULL";
      if (number(regclass) == 0) continue;
      Run("CREATE OR REPLACE TRIGGER " + table + "_changed AFTER INSERT OR UPDATE OR DELETE ON " +
          table + " FOR EACH STATEMENT EXECUTE FUNCTION tandem_changed()");
    }
    Run("INSERT INTO tandem_schema (name, version) VALUES (" + name + ", " +
        std::to_string(supported) +
        ") ON CONFLICT (name) DO UPDATE SET version = " + std::to_string(supported));
    spdlog::info("database_updated schema={} from={} to={}", schema.name, version, supported);
  }
  Commit();
}

}  // namespace tandem::server
