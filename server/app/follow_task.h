#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "server/http/request_pool.h"

namespace tandem::server {

// A reaction to the changes of other replicas that is too slow for the thread that learns of them.
// It runs in a pool and waits there at most once, so that many changes cost one run. Any thread.
// The pool's tasks borrow it.
class FollowTask {
 public:
  // `name` is for the log; a failure of `action` is logged.
  FollowTask(RequestPool& pool, std::string name, std::function<void()> action);
  FollowTask(const FollowTask&) = delete;
  FollowTask& operator=(const FollowTask&) = delete;

  // Makes the action run once more; that run begins after this call. Throws kUnavailable if the
  // pool takes no task; the next call tries again.
  void Post();

 private:
  void Run();

  RequestPool& pool_;
  const std::string name_;
  const std::function<void()> action_;
  std::atomic<bool> is_due_{false};  // a task of the pool waits
};

}  // namespace tandem::server
