#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tandem::server {

// A thread pool for handlers and other slow tasks, which keeps them off the io thread. Clients with
// queued tasks take turns, so a client waits for one task of each other client, not for all of
// them. The queue is bounded, and so is each client's part of it.
class RequestPool {
 public:
  struct Options {
    int n_threads = 1;
    size_t max_queued = 0;
    size_t max_queued_per_client = SIZE_MAX;  // client 0, all requests without a key, has no bound
    std::string name = "tandem-req";          // threads have this name plus a number
  };
  explicit RequestPool(Options options);
  ~RequestPool();
  RequestPool(const RequestPool&) = delete;
  RequestPool& operator=(const RequestPool&) = delete;

  // Returns false if the queue, or the client's part of it, is full. A task that throws, most
  // likely for lack of memory, is logged and dropped.
  bool TryPost(uint64_t client, std::function<void()> task);
  // Waits for the running tasks, drops the queued ones and joins. Afterwards TryPost returns false.
  // The destructor does the same.
  void Stop();

 private:
  // The queued tasks of one client, never empty.
  struct Line {
    uint64_t client = 0;
    std::deque<std::function<void()>> tasks;
  };
  void Run();
  std::function<void()> TakeNext();  // REQUIRES: mutex_ held, lines_ not empty

  const Options options_;
  std::mutex mutex_;  // guards stopping_, lines_ and n_queued_
  std::condition_variable arrived_;
  bool stopping_ = false;
  std::list<Line> lines_;  // in the order of their turns
  size_t n_queued_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::server
