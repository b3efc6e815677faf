#include "server/responses/response_store.h"

#include <future>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/unix_time.h"
#include "server/database/replica_lease.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxAgeSeconds = int64_t{30} * 24 * 3600;
// Each request has at most one task here, so the connections and the engine's queue bound it.
constexpr size_t kMaxTasks = 1 << 20;
constexpr const char* kKilled =
    "the server was stopped before the response was complete: create it again";

int64_t BytesOf(const StoredResponse& response) {
  return static_cast<int64_t>(response.body.size() + response.input.size() +
                              response.events.size());
}

}  // namespace

std::string FailedBody(const std::string& body, const std::string& message) {
  Json response = Json::parse(body);
  response["status"] = "failed";
  response["error"] = {{"code", "server_error"}, {"message", message}};
  return response.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ResponseStore::ResponseStore(Options options)
    : options_(std::move(options)),
      thread_({.n_threads = 1, .max_queued = kMaxTasks, .name = "tandem-store"}) {
  if (options_.data_dir.empty()) return;
  const std::lock_guard lock(mutex_);
  database_ = std::make_unique<Database>(InDataDir(options_.shared, options_.data_dir));
  FailUnfinished();
  DropOldRows();
}

int64_t ResponseStore::OldestAllowed() const {
  const int64_t now = options_.now ? options_.now() : UnixNow();
  return now - kMaxAgeSeconds;
}

void ResponseStore::FailUnfinished() {
  std::vector<std::pair<std::string, std::string>> unfinished;
  {
    Query query =
        database_->Prepare(std::string("SELECT id, body FROM responses WHERE is_finished = 0 AND "
                                       "replica IS DISTINCT FROM ? AND ") +
                           kReplicaIsGone);
    // Ours, whatever our lease says.
    query.Bind(std::string_view(options_.replica));
    while (query.Next()) {
      std::string id = query.Text();
      unfinished.emplace_back(std::move(id), query.Text());
    }
  }
  for (const auto& [id, body] : unfinished) {
    const std::string failed = FailedBody(body, kKilled);
    Query query = database_->Prepare(
        "UPDATE responses SET body = ?, is_finished = 1 WHERE id = ? AND is_finished = 0");
    query.Bind(std::string_view(failed)).Bind(std::string_view(id));
    query.Next();
    spdlog::warn("background_response_failed id={} reason=\"the server was killed\"", id);
  }
}

void ResponseStore::FailLeft() {
  const std::lock_guard lock(mutex_);
  if (database_) FailUnfinished();
}

// Removes the oldest responses, or the newest one if it alone is too large.
void ResponseStore::DropOldRows() {
  // An unfinished response is still needed. It is the newest of its server, so few are kept.
  Query query = database_->Prepare(
      "DELETE FROM responses WHERE is_finished = 1 AND (created_at < ?1 OR seq <= "
      "(SELECT COALESCE(MAX(seq), 0) FROM responses) - ?2)");
  query.Bind(OldestAllowed()).Bind(options_.max_responses);
  query.Next();
  for (;;) {
    Query total = database_->Prepare("SELECT COALESCE(SUM(bytes), 0) FROM responses");
    if (!total.Next() || total.Int() <= options_.max_bytes) return;
    Query oldest = database_->Prepare(
        "DELETE FROM responses WHERE seq = (SELECT MIN(seq) FROM responses WHERE is_finished = 1)");
    oldest.Next();
    if (database_->changes() == 0) return;
  }
}

void ResponseStore::DeleteInMemory(const std::string& id) {
  const auto found = seq_of_.find(id);
  if (found == seq_of_.end()) return;
  memory_bytes_ -= BytesOf(in_memory_.at(found->second));
  in_memory_.erase(found->second);
  seq_of_.erase(found);
}

void ResponseStore::DropOldInMemory() {
  const int64_t oldest = OldestAllowed();
  while (!in_memory_.empty()) {
    const StoredResponse& first = in_memory_.begin()->second;
    const bool is_too_many = static_cast<int64_t>(in_memory_.size()) > options_.max_responses ||
                             memory_bytes_ > options_.max_memory_bytes;
    if (!is_too_many && first.created_at >= oldest) return;
    DeleteInMemory(std::string(first.id));
  }
}

void ResponseStore::PutInMemory(const StoredResponse& response) {
  DeleteInMemory(response.id);
  in_memory_.emplace(next_seq_, response);
  seq_of_[response.id] = next_seq_++;
  memory_bytes_ += BytesOf(response);
  DropOldInMemory();
}

void ResponseStore::Put(const StoredResponse& response) {
  const std::lock_guard lock(mutex_);
  if (!database_) return PutInMemory(response);
  Query query = database_->Prepare(
      "INSERT INTO responses (id, owner, created_at, is_finished, body, input, events, bytes, "
      "replica) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (id) DO UPDATE SET "
      "is_finished = ?4, body = ?5, events = ?7, bytes = ?8");
  query.Bind(std::string_view(response.id)).Bind(response.owner).Bind(response.created_at);
  query.Bind(int64_t{response.is_finished}).Bind(std::string_view(response.body));
  query.Bind(std::string_view(response.input)).Bind(std::string_view(response.events));
  query.Bind(BytesOf(response));
  query.Bind(options_.shared.is_shared() ? std::optional<std::string_view>(options_.replica)
                                         : std::nullopt);
  query.Next();
  DropOldRows();
}

std::optional<StoredResponse> ResponseStore::Find(const std::string& id, const Viewer& viewer,
                                                  bool with_events) {
  const std::lock_guard lock(mutex_);
  if (!database_) {
    const auto found = seq_of_.find(id);
    if (found == seq_of_.end()) return std::nullopt;
    const StoredResponse& response = in_memory_.at(found->second);
    if (!MaySee(viewer, response.owner) || response.created_at < OldestAllowed()) {
      return std::nullopt;
    }
    return response;
  }
  Query query =
      database_->Prepare(std::string("SELECT id, owner, created_at, is_finished, body, input, ") +
                         (with_events ? "events" : "''") +
                         " FROM responses WHERE id = ?1 AND created_at >= ?2 AND "
                         "(?3 IS NULL OR owner IS NULL OR owner = ?3)");
  query.Bind(std::string_view(id)).Bind(OldestAllowed()).Bind(viewer);
  if (!query.Next()) return std::nullopt;
  StoredResponse response;
  response.id = query.Text();
  response.owner = query.IntOrNull();
  response.created_at = query.Int();
  response.is_finished = query.Int() != 0;
  response.body = query.Text();
  response.input = query.Text();
  response.events = query.Text();
  return response;
}

bool ResponseStore::Delete(const std::string& id, const Viewer& viewer) {
  if (!Find(id, viewer)) return false;
  const std::lock_guard lock(mutex_);
  if (!database_) {
    DeleteInMemory(id);
    return true;
  }
  Query query = database_->Prepare("DELETE FROM responses WHERE id = ?");
  query.Bind(std::string_view(id));
  query.Next();
  return true;
}

void ResponseStore::Stop() {
  std::promise<void> reached;
  if (Post([&reached] { reached.set_value(); })) reached.get_future().wait();
  thread_.Stop();
}

}  // namespace tandem::server
