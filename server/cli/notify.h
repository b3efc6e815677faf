#pragma once

#include <string_view>

namespace tandem::server {

// Tells the service manager that started this process, if one wants to hear (systemd's
// Type=notify): "READY=1", "STOPPING=1". Does nothing without NOTIFY_SOCKET; never waits, never
// throws: nobody's service depends on being watched.
void NotifyServiceManager(std::string_view state);

}  // namespace tandem::server
