#pragma once

#include <string_view>

namespace tandem::server {

// Sends a state ("READY=1") to systemd (sd_notify(3), Type=notify): one datagram to the socket in
// $NOTIFY_SOCKET. Does nothing if the variable is unset; a failure logs a warning. Thread-safe.
void NotifyService(std::string_view state);
// Sends RELOADING=1 with MONOTONIC_USEC, as Type=notify-reload requires. READY=1 ends the reload.
void NotifyReloading();

}  // namespace tandem::server
