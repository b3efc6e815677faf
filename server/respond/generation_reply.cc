#include "server/respond/generation_reply.h"

#include <random>
#include <string_view>

#include "server/respond/event_renderer.h"
#include "server/respond/reply_renderer.h"

namespace tandem::server {

using engine::GenerationEvent;

std::string NewObjectId(const std::string& prefix) {
  static constexpr std::string_view kAlphabet =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::string id = prefix;
  for (int i = 0; i < 24; ++i) id.push_back(kAlphabet[generator() % kAlphabet.size()]);
  return id;
}

std::shared_ptr<GenerationReply> GenerationReply::Create(ReplyShape shape, ResponseWriter writer) {
  auto renderer = std::make_unique<ReplyRenderer>(std::move(shape), writer);
  return Create(std::move(renderer), std::move(writer));
}

std::shared_ptr<GenerationReply> GenerationReply::Create(std::unique_ptr<EventRenderer> renderer,
                                                         ResponseWriter writer) {
  return std::shared_ptr<GenerationReply>(
      new GenerationReply(std::move(renderer), std::move(writer)));
}

GenerationReply::GenerationReply(std::unique_ptr<EventRenderer> renderer, ResponseWriter writer)
    : writer_(std::move(writer)), renderer_(std::move(renderer)) {}

GenerationReply::~GenerationReply() = default;

engine::EventSink GenerationReply::Sink(size_t prompt_idx) {
  return [self = shared_from_this(), prompt_idx](RequestId, GenerationEvent event) {
    self->Queue(prompt_idx, std::move(event));
  };
}

void GenerationReply::Queue(size_t prompt_idx, GenerationEvent event) {
  if (writer_.disconnected()) return;
  {
    const std::lock_guard lock(mutex_);
    events_.emplace_back(prompt_idx, std::move(event));
    // Events of one step share a task and one write.
    if (!begun_ || events_.size() > 1) return;
  }
  writer_.Post([self = shared_from_this()] { self->Drain(); });
}

void GenerationReply::Begin(std::function<void()> cancel, std::function<void(bool)> set_paused) {
  if (renderer_->has_pings()) {
    writer_.OnSilence([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->renderer_->SendPing();
    });
  }
  writer_.Post([self = shared_from_this(), cancel = std::move(cancel),
                set_paused = std::move(set_paused)]() mutable {
    self->renderer_->Begin(std::move(cancel), std::move(set_paused));
    {
      const std::lock_guard lock(self->mutex_);
      self->begun_ = true;
    }
    self->Drain();
  });
}

void GenerationReply::Drain() {
  std::vector<std::pair<size_t, GenerationEvent>> events;
  {
    const std::lock_guard lock(mutex_);
    events.swap(events_);
  }
  for (auto& [prompt_idx, event] : events) renderer_->On(prompt_idx, std::move(event));
}

}  // namespace tandem::server
