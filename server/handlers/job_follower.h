#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/handlers/handlers.h"
#include "server/jobs/job_watchers.h"

namespace tandem::server {

// Sends what a job writes as server-sent events, while it writes. Works on the connection's strand:
// each turn reads a piece, and what wakes it (the supervisor, a reader that caught up, the server
// stopping) only posts. Kept alive by the connection's disconnect callback until the stream ends.
class JobFollower : public std::enable_shared_from_this<JobFollower> {
 public:
  virtual ~JobFollower() = default;
  JobFollower(const JobFollower&) = delete;
  JobFollower& operator=(const JobFollower&) = delete;

  // REQUIRES: a shared pointer owns it. Throws kNotFound (job_not_found) and kUnavailable.
  void Start();

 protected:
  enum class Next { kWait, kGoOn, kEnd };

  JobFollower(const HandlerContext& context, std::string job_id, ResponseWriter writer);

  // One turn. kGoOn: there is more to read at once; kEnd: all has been sent.
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
  std::atomic<bool> is_paused_{false};
  bool is_done_ = false;
  std::shared_ptr<std::function<void()>> on_drain_;
  JobSubscription subscription_;
};

}  // namespace tandem::server
