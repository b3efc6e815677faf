#include "server/jobs/job_watchers.h"

#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/log.h"

namespace tandem::server {

JobSubscription& JobSubscription::operator=(JobSubscription&& other) noexcept {
  if (this != &other) {
    Cancel();
    watchers_ = std::move(other.watchers_);
    key_ = other.key_;
  }
  return *this;
}

void JobSubscription::Cancel() {
  if (const auto watchers = std::exchange(watchers_, nullptr)) watchers->Remove(key_);
}

JobSubscription JobWatchers::Add(std::string job_id, std::function<void()> callback) {
  const std::lock_guard lock(mutex_);
  const uint64_t key = next_key_++;
  watchers_[key] = {std::move(job_id),
                    std::make_shared<const std::function<void()>>(std::move(callback))};
  return JobSubscription(shared_from_this(), key);
}

void JobWatchers::Notify(const std::string& job_id) {
  std::unique_lock lock(mutex_);
  std::vector<uint64_t> keys;
  for (const auto& [key, watcher] : watchers_) {
    if (watcher.job_id == job_id) keys.push_back(key);
  }
  for (const uint64_t key : keys) {
    const auto watcher = watchers_.find(key);
    if (watcher == watchers_.end()) continue;  // removed by an earlier callback
    const auto callback = watcher->second.callback;
    in_call_ = key;
    caller_ = std::this_thread::get_id();
    lock.unlock();
    if (const auto error = Attempt(*callback)) {
      spdlog::warn("job watcher failed id={} error=\"{}\"", job_id, error->what());
    }
    lock.lock();
    in_call_ = 0;
    call_ended_.notify_all();
  }
}

void JobWatchers::Remove(uint64_t key) {
  std::unique_lock lock(mutex_);
  const auto watcher = watchers_.find(key);
  if (watcher == watchers_.end()) return;
  // Destroyed after the lock: the destructors of a callback's captures may call this object.
  const Watcher removed = std::move(watcher->second);
  watchers_.erase(watcher);
  call_ended_.wait(lock, [&] { return in_call_ != key || caller_ == std::this_thread::get_id(); });
  lock.unlock();
}

std::set<std::string> JobWatchers::WatchedJobs() {
  const std::lock_guard lock(mutex_);
  std::set<std::string> ids;
  for (const auto& [key, watcher] : watchers_) ids.insert(watcher.job_id);
  return ids;
}

}  // namespace tandem::server
