#include "server/database/change_feed.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/thread_name.h"
#include "server/database/postgres_connection.h"
#include "server/database/schema.h"

namespace tandem::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kInterval{1000};
constexpr int64_t kLooksPerLeases = 5;

}  // namespace

ChangeFeed::ChangeFeed(const DatabaseSource& source, std::string replica, OnChange on_change)
    : on_change_(std::move(on_change)),
      database_(source),
      connection_(std::make_unique<PostgresConnection>(source, ServerSchema())),
      lease_(source, std::move(replica)),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TANDEM_CHECK(wake_fd_ >= 0);
}

void ChangeFeed::Start() {
  thread_ = std::thread([this] { Run(); });
}

ChangeFeed::~ChangeFeed() {
  Stop();
  ::close(wake_fd_);
}

void ChangeFeed::Stop() {
  is_stopping_ = true;
  (void)::eventfd_write(wake_fd_, 1);
  if (thread_.joinable()) thread_.join();
  lease_.Stop();
}

// Finds the changes whose notices were lost.
std::set<std::string> ChangeFeed::Look() {
  std::set<std::string> changed;
  Query query = database_.Prepare("SELECT subject, count FROM tandem_changes");
  while (query.Next()) {
    const std::string table = query.Text();
    const int64_t count = query.Int();
    if (const auto [at, is_new] = seen_.try_emplace(table, count); is_new || at->second != count) {
      at->second = count;
      changed.insert(table);
    }
  }
  if (n_looks_++ % kLooksPerLeases == 0) changed.insert("leases");
  return changed;
}

void ChangeFeed::Tell(std::set<std::string> tables) {
  tables.merge(failed_);
  failed_.clear();
  for (const std::string& table : tables) {
    const auto error = Attempt([&] { on_change_(table); });
    if (!error) continue;
    spdlog::warn("change_not_followed table={} reason=\"{}\"", table, error->what());
    failed_.insert(table);
  }
}

void ChangeFeed::Run() {
  NameThisThread("tandem-changes");
  auto next_look = std::chrono::steady_clock::now();
  bool was_down = false;
  while (!is_stopping_) {
    const auto error = Attempt([&] {
      std::set<std::string> changed;
      const auto now = std::chrono::steady_clock::now();
      if (now >= next_look) {
        changed = Look();
        next_look = now + kInterval;
      }
      if (!changed.empty() || !failed_.empty()) Tell(std::move(changed));
      const auto notices = connection_->WaitForChanges(kInterval, wake_fd_);
      if (!notices.empty() && !is_stopping_) Tell({notices.begin(), notices.end()});
    });
    if (error && !was_down) {
      spdlog::error("database_lost reason=\"{}\"", error->what());
    }
    if (!error && was_down) spdlog::info("database_back");
    was_down = error.has_value();
    // Without a connection, nothing above has waited.
    if (error && !is_stopping_) std::this_thread::sleep_for(kInterval);
  }
}

}  // namespace tandem::server
