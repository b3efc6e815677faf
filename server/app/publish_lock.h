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
  ~PublishLock() { owner_ = std::thread::id(); }
  PublishLock(const PublishLock&) = delete;
  PublishLock& operator=(const PublishLock&) = delete;

 private:
  const std::lock_guard<std::mutex> lock_;
  std::atomic<std::thread::id>& owner_;
};

}  // namespace tandem::server
