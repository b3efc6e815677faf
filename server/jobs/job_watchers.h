#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace tandem::server {

class JobWatchers;

// Keeps a callback subscribed during its lifetime. After Cancel or destruction the callback neither
// runs nor starts, unless the callback itself cancels. Do not hold a lock here that the callback
// takes. May outlive the supervisor.
class JobSubscription {
 public:
  JobSubscription() = default;
  ~JobSubscription() { Cancel(); }
  JobSubscription(JobSubscription&& other) noexcept = default;
  JobSubscription& operator=(JobSubscription&& other) noexcept;

  void Cancel();

 private:
  friend class JobWatchers;
  JobSubscription(std::shared_ptr<JobWatchers> watchers, uint64_t key)
      : watchers_(std::move(watchers)), key_(key) {}

  std::shared_ptr<JobWatchers> watchers_;
  uint64_t key_ = 0;
};

// The subscribers to log growth and status changes of jobs. Any thread, except that only one thread
// calls Notify.
class JobWatchers : public std::enable_shared_from_this<JobWatchers> {
 public:
  JobSubscription Add(std::string job_id, std::function<void()> callback);
  // Runs the callbacks of one job on this thread, without a lock.
  void Notify(const std::string& job_id);
  std::set<std::string> WatchedJobs();

 private:
  friend class JobSubscription;
  struct Watcher {
    std::string job_id;
    std::shared_ptr<const std::function<void()>> callback;
  };
  void Remove(uint64_t key);

  std::mutex mutex_;  // guards all below
  std::condition_variable call_ended_;
  std::map<uint64_t, Watcher> watchers_;
  uint64_t next_key_ = 1;
  uint64_t in_call_ = 0;  // key, or 0
  std::thread::id caller_;
};

}  // namespace tandem::server
