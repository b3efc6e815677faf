#include "server/app/service_notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "engine/base/log.h"

namespace tandem::server {

void NotifyService(std::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || *path == '\0') return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t path_bytes = std::strlen(path);
  if (path_bytes >= sizeof(address.sun_path)) {
    spdlog::warn("notify_failed reason=\"NOTIFY_SOCKET is too long\"");
    return;
  }
  std::memcpy(address.sun_path, path, path_bytes);
  if (*path == '@') address.sun_path[0] = '\0';  // abstract socket
  const auto address_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path_bytes);

  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
                       reinterpret_cast<const sockaddr*>(&address), address_bytes) < 0) {
    spdlog::warn("notify_failed reason=\"{}\"", std::strerror(errno));
  }
  if (fd >= 0) close(fd);
}

void NotifyReloading() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  NotifyService("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(us));
}

}  // namespace tandem::server
