#include "server/http/request_pool.h"

#include <algorithm>
#include <utility>

#include "engine/base/thread_name.h"
#include "engine/base/thread_round.h"

namespace tandem::server {

RequestPool::RequestPool(Options options) : options_(std::move(options)) {
  for (int i = 0; i < std::max(1, options_.n_threads); ++i) {
    threads_.emplace_back([this, thread_name = options_.name + "-" + std::to_string(i)] {
      NameThisThread(thread_name);
      Run();
    });
  }
}

RequestPool::~RequestPool() { Stop(); }

void RequestPool::Stop() {
  std::list<Line> dropped;  // destroyed outside the lock
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(lines_);
    n_queued_ = 0;
  }
  arrived_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

bool RequestPool::TryPost(uint64_t client, std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || n_queued_ >= options_.max_queued) return false;
    const auto line = std::find_if(lines_.begin(), lines_.end(),
                                   [&](const Line& one) { return one.client == client; });
    if (line == lines_.end()) {
      Line fresh{client, {}};
      fresh.tasks.push_back(std::move(task));
      lines_.push_back(std::move(fresh));
    } else if (client != 0 && line->tasks.size() >= options_.max_queued_per_client) {
      return false;
    } else {
      line->tasks.push_back(std::move(task));
    }
    ++n_queued_;
  }
  arrived_.notify_one();
  return true;
}

// Never throws: the client's line moves to the end without an allocation.
std::function<void()> RequestPool::TakeNext() {
  const auto line = lines_.begin();
  std::function<void()> task = std::move(line->tasks.front());
  line->tasks.pop_front();
  --n_queued_;
  if (line->tasks.empty()) {
    lines_.erase(line);
  } else {
    lines_.splice(lines_.end(), lines_, line);
  }
  return task;
}

void RequestPool::Run() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [this] { return stopping_ || !lines_.empty(); });
      if (stopping_) return;
      task = TakeNext();
    }
    RunRound("task of a request", task);
  }
}

}  // namespace tandem::server
