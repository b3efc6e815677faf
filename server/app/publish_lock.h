#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace tandem::server {

// Owns the mutex of publishing, and remembers the owner's thread: a model of a job may need another
// one, and the loader of that must not wait for its own thread.
class PublishLock {
 public:
  PublishLock(std::mutex& mutex, std::atomic<std::thread::id>& owner)
      : lock_(mutex), owner_(owner) {
    owner_ = std::this_thread::get_id();
  }
  // Does not wait for another owner; owns() tells.
  PublishLock(std::mutex& mutex, std::atomic<std::thread::id>& owner, std::try_to_lock_t now)
      : lock_(mutex, now), owner_(owner) {
    if (owns()) owner_ = std::this_thread::get_id();
  }
  ~PublishLock() {
    if (owns()) owner_ = std::thread::id();
  }
  PublishLock(const PublishLock&) = delete;
  PublishLock& operator=(const PublishLock&) = delete;

  bool owns() const { return lock_.owns_lock(); }

 private:
  const std::unique_lock<std::mutex> lock_;
  std::atomic<std::thread::id>& owner_;
};

}  // namespace tandem::server
