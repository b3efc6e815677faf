#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tandem::server {

// A thread pool for handlers and other slow tasks, which keeps them off the io thread. The queue is
// bounded: TryPost returns false if it is full.
class RequestPool {
 public:
  // Thread names are `name` plus a number.
  RequestPool(int n_threads, size_t max_queued, const std::string& name = "tandem-req");
  ~RequestPool();
  RequestPool(const RequestPool&) = delete;
  RequestPool& operator=(const RequestPool&) = delete;

  // A task that runs out of memory is dropped. Tasks must not throw anything else.
  bool TryPost(std::function<void()> task);
  // Waits for the running tasks, drops the queued ones and joins. Afterwards TryPost returns false.
  // The destructor does the same.
  void Stop();

 private:
  void Run();

  const size_t max_queued_;
  std::mutex mutex_;  // guards stopping_ and tasks_
  std::condition_variable arrived_;
  bool stopping_ = false;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::server
