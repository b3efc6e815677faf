#pragma once

#include <string_view>

namespace tandem::server {

// What systemd wants to hear from a service of Type=notify, sent as one datagram to the socket that
// $NOTIFY_SOCKET names. Without the variable nobody listens and nothing happens; a manager that
// cannot be reached costs a warning. Thread-safe.
void NotifyService(std::string_view state);
// RELOADING=1 with the clock that Type=notify-reload compares. READY=1 ends it.
void NotifyReloading();

}  // namespace tandem::server
