#include "server/handlers/responses/response_follower.h"

#include <string>
#include <string_view>
#include <utility>

namespace tandem::server {
namespace {

constexpr size_t kPageBytes = 64 << 10;

// The type of an event: its JSON begins with it.
std::string_view TypeOf(std::string_view event) {
  constexpr std::string_view kBegin = R"({"type":")";
  if (!event.starts_with(kBegin)) return {};
  event.remove_prefix(kBegin.size());
  return event.substr(0, event.find('"'));
}

}  // namespace

ResponseFollower::ResponseFollower(std::shared_ptr<BackgroundResponse> response, size_t from,
                                   ResponseWriter writer)
    : response_(std::move(response)), next_(from), writer_(std::move(writer)) {}

void ResponseFollower::Start(std::shared_ptr<BackgroundResponse> response, size_t from,
                             ResponseWriter writer) {
  const std::shared_ptr<ResponseFollower> self(
      new ResponseFollower(std::move(response), from, std::move(writer)));
  const std::weak_ptr<ResponseFollower> weak = self;
  self->on_change_ = std::make_shared<std::function<void()>>([weak] {
    if (const auto alive = weak.lock()) alive->PostTurn();
  });
  // The connection keeps the follower alive until the stream ends.
  self->writer_.OnDisconnect([self] { self->on_change_.reset(); });
  self->stream_ = self->writer_.StartEventStream();
  self->stream_->OnBackpressure([weak](bool paused) {
    const auto alive = weak.lock();
    if (!alive) return;
    alive->is_paused_ = paused;
    if (!paused) alive->PostTurn();
  });
  self->response_->Subscribe(self->on_change_);
  self->PostTurn();
}

void ResponseFollower::PostTurn() {
  writer_.Post([self = shared_from_this()] { self->Turn(); });
}

void ResponseFollower::Turn() {
  if (is_done_ || is_paused_) return;
  const BackgroundResponse::Page page = response_->Read(next_, kPageBytes);
  for (const std::string& event : page.events) stream_->SendNamed(TypeOf(event), event);
  next_ += page.events.size();
  if (page.is_last) {
    is_done_ = true;
    stream_->Close();  // releases this follower
  } else if (!page.events.empty()) {
    PostTurn();
  }
}

}  // namespace tandem::server
