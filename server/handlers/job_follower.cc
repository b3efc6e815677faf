#include "server/handlers/job_follower.h"

#include <utility>

#include "server/jobs/job_supervisor.h"

namespace tandem::server {

JobFollower::JobFollower(const HandlerContext& context, std::string job_id, ResponseWriter writer)
    : context_(context), job_id_(std::move(job_id)), writer_(std::move(writer)) {}

void JobFollower::Start() {
  const auto wake = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->PostTurn();
  };
  subscription_ = RequireJobs(context_).Subscribe(job_id_, wake);
  on_drain_ = std::make_shared<std::function<void()>>(wake);
  context_.drain->Subscribe(on_drain_);
  writer_.OnDisconnect([self = shared_from_this()] { self->subscription_.Cancel(); });
  stream_ = writer_.StartEventStream();
  stream_->OnBackpressure([weak = weak_from_this()](bool paused) {
    const auto self = weak.lock();
    if (!self) return;
    self->is_paused_ = paused;
    if (!paused) self->PostTurn();
  });
  has_started_ = true;
  PostTurn();
}

void JobFollower::PostTurn() {
  writer_.Post([self = shared_from_this()] { self->Turn(); });
}

void JobFollower::Turn() {
  // A wake-up may precede the stream. Start posts another turn.
  if (!has_started_ || is_done_ || is_paused_) return;
  switch (Send(*stream_)) {
    case Next::kWait:
      return;
    case Next::kGoOn:
      return PostTurn();
    case Next::kEnd:
      is_done_ = true;
      stream_->Close();  // releases this follower
  }
}

}  // namespace tandem::server
