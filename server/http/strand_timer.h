#pragma once

// Private to this room: includes Boost.

#include <chrono>
#include <utility>

#include "server/http/net.h"

namespace tandem::server {

// Calls back after the time, unless the timer is cancelled or armed again earlier. `callback` must
// own the object that contains `timer`.
template <class Callback>
void ArmTimer(StrandTimer& timer, std::chrono::milliseconds after, Callback callback) {
  timer.expires_after(after);
  timer.async_wait(
      [&timer, callback = std::move(callback)](const boost::system::error_code& error) mutable {
        // A wait that was re-armed after it had expired completes without an error.
        if (error || timer.expiry() > std::chrono::steady_clock::now()) return;
        callback();
      });
}

}  // namespace tandem::server
