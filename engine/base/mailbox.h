#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

namespace tandem {

// Queue with many writers and one reader. The reader takes all messages at once, so it locks once
// per step.
template <class T>
class Mailbox {
 public:
  void Post(T message) {
    {
      const std::lock_guard lock(mutex_);
      messages_.push_back(std::move(message));
    }
    arrived_.notify_one();
  }

  // Posts all messages in order, or none when memory runs out.
  void PostAll(std::vector<T> messages) {
    {
      const std::lock_guard lock(mutex_);
      const size_t needed = messages_.size() + messages.size();
      if (messages_.capacity() < needed) messages_.reserve(2 * needed);
      for (T& message : messages) messages_.push_back(std::move(message));
    }
    arrived_.notify_one();
  }

  // Takes all messages without waiting for one.
  std::vector<T> TakeAll() {
    std::vector<T> out;
    const std::lock_guard lock(mutex_);
    out.swap(messages_);
    return out;
  }

  // Waits for a message until the timeout.
  void WaitFor(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, timeout, [&] { return !messages_.empty(); });
  }

 private:
  std::mutex mutex_;  // guards messages_
  std::condition_variable arrived_;
  std::vector<T> messages_;
};

}  // namespace tandem
