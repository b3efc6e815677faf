#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/io/posix_file.h"

namespace tandem::tests {

// Stands between libpq and a PostgreSQL of this machine. On request it withholds the answer to a
// COMMIT and ends that connection: the change is stored, and its client cannot know.
class LossyRelay {
 public:
  // `url`: postgres://USER@127.0.0.1:PORT/DATABASE.
  explicit LossyRelay(const std::string& url) {
    const size_t port_at = url.rfind(':') + 1;
    const size_t port_end = url.find('/', port_at);
    server_ = AddressOf(static_cast<uint16_t>(std::stoi(url.substr(port_at, port_end - port_at))));
    listener_ = NewSocket();
    sockaddr_in own = AddressOf(0);
    socklen_t size = sizeof own;
    if (::bind(listener_.get(), Generic(&own), size) != 0 || ::listen(listener_.get(), 8) != 0 ||
        ::getsockname(listener_.get(), Generic(&own), &size) != 0) {
      throw std::runtime_error("the relay cannot listen");
    }
    url_ = url.substr(0, port_at) + std::to_string(ntohs(own.sin_port)) + url.substr(port_end);
    thread_ = std::thread([this] { Run(); });
  }
  ~LossyRelay() {
    is_stopping_ = true;
    ::shutdown(listener_.get(), SHUT_RDWR);  // wakes the thread
    thread_.join();
  }
  LossyRelay(const LossyRelay&) = delete;
  LossyRelay& operator=(const LossyRelay&) = delete;

  // The database through this relay.
  const std::string& url() const { return url_; }
  void LoseNextCommit() { loses_next_ = true; }

 private:
  struct Connection {
    engine::FileDescriptor client;
    engine::FileDescriptor server;
    bool is_losing = false;
  };

  static sockaddr_in AddressOf(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
  }
  static sockaddr* Generic(sockaddr_in* address) { return reinterpret_cast<sockaddr*>(address); }
  static engine::FileDescriptor NewSocket() {
    return engine::FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }

  void Run() {
    while (!is_stopping_) {
      std::vector<pollfd> sockets = {{listener_.get(), POLLIN, 0}};
      for (const Connection& one : connections_) {
        sockets.push_back({one.client.get(), POLLIN, 0});
        sockets.push_back({one.server.get(), POLLIN, 0});
      }
      ::poll(sockets.data(), sockets.size(), -1);
      size_t i = 1;
      for (auto one = connections_.begin(); one != connections_.end(); i += 2) {
        const bool is_open = (sockets[i].revents == 0 || TakeFromClient(*one)) &&
                             (sockets[i + 1].revents == 0 || TakeFromServer(*one));
        one = is_open ? std::next(one) : connections_.erase(one);
      }
      if (sockets[0].revents != 0) Accept();
    }
  }

  void Accept() {
    Connection one{engine::FileDescriptor(::accept(listener_.get(), nullptr, nullptr)),
                   NewSocket()};
    if (one.client.get() < 0) return;
    if (::connect(one.server.get(), Generic(&server_), sizeof server_) != 0) return;
    connections_.push_back(std::move(one));
  }

  // These return false at the end of the connection.
  bool TakeFromClient(Connection& one) {
    const std::string bytes = Receive(one.client);
    if (bytes.find("COMMIT") != std::string::npos && loses_next_.exchange(false)) {
      one.is_losing = true;
    }
    return !bytes.empty() && Send(one.server, bytes);
  }
  // The answer to COMMIT is its name.
  bool TakeFromServer(Connection& one) {
    const std::string bytes = Receive(one.server);
    if (one.is_losing) return !bytes.empty() && bytes.find("COMMIT") == std::string::npos;
    return !bytes.empty() && Send(one.client, bytes);
  }

  static std::string Receive(const engine::FileDescriptor& socket) {
    std::array<char, 1 << 16> buffer;
    const ssize_t n = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    return {buffer.data(), n > 0 ? static_cast<size_t>(n) : 0};
  }
  static bool Send(const engine::FileDescriptor& socket, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  engine::FileDescriptor listener_;
  sockaddr_in server_{};
  std::string url_;
  std::atomic<bool> loses_next_{false};
  std::atomic<bool> is_stopping_{false};
  std::list<Connection> connections_;  // the thread's
  std::thread thread_;
};

}  // namespace tandem::tests
