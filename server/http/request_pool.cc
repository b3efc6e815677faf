#include "server/http/request_pool.h"

#include <algorithm>
#include <utility>

#include "engine/base/out_of_memory.h"
#include "engine/base/thread_name.h"

namespace tandem::server {

RequestPool::RequestPool(int n_threads, size_t max_queued, const std::string& name)
    : max_queued_(max_queued) {
  for (int i = 0; i < std::max(1, n_threads); ++i) {
    threads_.emplace_back([this, thread_name = name + "-" + std::to_string(i)] {
      NameThisThread(thread_name);
      Run();
    });
  }
}

RequestPool::~RequestPool() { Stop(); }

void RequestPool::Stop() {
  std::deque<std::function<void()>> dropped;  // destroyed outside the lock
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(tasks_);
  }
  arrived_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

bool RequestPool::TryPost(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || tasks_.size() >= max_queued_) return false;
    tasks_.push_back(std::move(task));
  }
  arrived_.notify_one();
  return true;
}

void RequestPool::Run() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    HasMemoryFor(task);
  }
}

}  // namespace tandem::server
