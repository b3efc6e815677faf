#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/handlers/handlers.h"
#include "server/jobs/job_watchers.h"

namespace tandem::server {

// Streams a running job's output as server-sent events. Runs on the connection's strand: each turn
// reads one piece. Wake-ups (the supervisor, a client that caught up, server shutdown) only post a
// turn. The connection's disconnect callback keeps the follower alive until the stream ends.
class JobFollower : public std::enable_shared_from_this<JobFollower> {
 public:
  virtual ~JobFollower() = default;
  JobFollower(const JobFollower&) = delete;
  JobFollower& operator=(const JobFollower&) = delete;

  // REQUIRES: a shared_ptr owns this. Throws kNotFound (job_not_found) and kUnavailable.
  void Start();

 protected:
  enum class Next { kWait, kGoOn, kEnd };

  JobFollower(const HandlerContext& context, std::string job_id, ResponseWriter writer);

  // One turn. kWait: sleep until the next wake-up; kGoOn: more is ready; kEnd: all has been sent.
  virtual Next Send(EventStream& stream) = 0;

  const HandlerContext& context() const { return context_; }
  const std::string& job_id() const { return job_id_; }

 private:
  void PostTurn();
  void Turn();

  const HandlerContext& context_;
  const std::string job_id_;
  const ResponseWriter writer_;
  std::optional<EventStream> stream_;
  std::atomic<bool> has_started_{false};  // set after stream_
  std::atomic<bool> is_paused_{false};
  bool is_done_ = false;
  std::shared_ptr<std::function<void()>> on_drain_;
  JobSubscription subscription_;
};

}  // namespace tandem::server
