#include <utility>

#include "server/handlers/handlers.h"

namespace tandem::server {

void DrainSignal::Subscribe(std::weak_ptr<std::function<void()>> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_raised_) {
      std::erase_if(callbacks_, [](const auto& known) { return known.expired(); });
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  if (const auto alive = callback.lock()) (*alive)();
}

void DrainSignal::Raise() {
  std::vector<std::weak_ptr<std::function<void()>>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    is_raised_ = true;
    callbacks.swap(callbacks_);
  }
  for (const auto& callback : callbacks) {
    if (const auto alive = callback.lock()) (*alive)();
  }
}

}  // namespace tandem::server
