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

// A few threads that run handlers, so that parsing, templates and tokenising never hold up a
// socket, or whatever else must not. The queue is bounded: TryPost answers false when it is full.
class RequestPool {
 public:
  // Threads are called `name` and their number.
  RequestPool(int n_threads, size_t max_queued, const std::string& name = "tandem-req");
  ~RequestPool();
  RequestPool(const RequestPool&) = delete;
  RequestPool& operator=(const RequestPool&) = delete;

  // A task that runs out of memory is dropped; it must throw nothing else.
  bool TryPost(std::function<void()> task);
  // Finishes the task in hand of each thread, drops what is queued, joins. After it TryPost answers
  // false. The destructor does the same.
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
