#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tandem::tests {

struct HubRequest {
  std::string method;
  std::string target;
  std::map<std::string, std::string> fields;  // names in lower case
  std::string body;
};

// The bytes to send. With `cut`, the connection ends after them.
struct HubReply {
  std::string bytes;
  bool cut = false;
  size_t piece_bytes = 0;  // sends pieces of this size with pauses; 0: all at once
};

inline std::string Reply(int status, const std::string& fields, const std::string& body,
                         bool is_head = false) {
  return "HTTP/1.1 " + std::to_string(status) + " Status\r\n" + fields +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + (is_head ? "" : body);
}

// A reply of unannounced length.
inline std::string ChunkedReply(int status, const std::string& fields, const std::string& body) {
  std::string bytes = "HTTP/1.1 " + std::to_string(status) + " Status\r\n" + fields +
                      "Transfer-Encoding: chunked\r\n\r\n";
  constexpr size_t kChunkBytes = 100'000;
  for (size_t begin = 0; begin < body.size(); begin += kChunkBytes) {
    const std::string chunk = body.substr(begin, kChunkBytes);
    char size[32];
    std::snprintf(size, sizeof(size), "%zx\r\n", chunk.size());
    bytes += size + chunk + "\r\n";
  }
  return bytes + "0\r\n\r\n";
}

// A server on a free port of 127.0.0.1 that replies through its handler and records requests.
class HubServer {
 public:
  using Handler = std::function<HubReply(const HubRequest&)>;

  explicit HubServer(Handler handler) : handler_(std::move(handler)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
        listen(listener_, 64) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
      throw std::runtime_error("no port for the test");
    }
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~HubServer() {
    stopping_ = true;
    acceptor_.join();
    for (std::thread& connection : connections_) connection.join();
    close(listener_);
  }
  HubServer(const HubServer&) = delete;
  HubServer& operator=(const HubServer&) = delete;

  // Two names of this machine count as two hosts.
  std::string url(const std::string& host = "127.0.0.1") const {
    return "http://" + host + ":" + std::to_string(port_);
  }
  std::vector<HubRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  bool IsReadable(int fd) const {
    while (!stopping_) {
      pollfd waited{fd, POLLIN, 0};
      if (poll(&waited, 1, 20) > 0) return true;
    }
    return false;
  }

  void Accept() {
    while (IsReadable(listener_)) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) connections_.emplace_back([this, fd] { Serve(fd); });
    }
  }

  bool Receive(int fd, std::string* input) const {
    if (!IsReadable(fd)) return false;
    char buffer[4096];
    const ssize_t n = recv(fd, buffer, sizeof(buffer), 0);
    if (n > 0) input->append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

  void Serve(int fd) {
    std::string input;
    while (Receive(fd, &input)) {
      const size_t end = input.find("\r\n\r\n");
      if (end == std::string::npos) continue;
      HubRequest request = Parse(input.substr(0, end + 2));
      input.erase(0, end + 4);
      if (request.fields.count("content-length") > 0) {
        const size_t n_body = std::stoull(request.fields["content-length"]);
        while (input.size() < n_body && Receive(fd, &input)) {
        }
        request.body = input.substr(0, n_body);
        input.erase(0, request.body.size());
      }
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      const HubReply reply = handler_(request);
      Send(fd, reply);
      if (reply.cut) break;
    }
    close(fd);
  }

  void Send(int fd, const HubReply& reply) const {
    const size_t n = reply.piece_bytes == 0 ? reply.bytes.size() : reply.piece_bytes;
    for (size_t begin = 0; begin < reply.bytes.size() && !stopping_; begin += n) {
      if (begin > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const size_t n_bytes = std::min(n, reply.bytes.size() - begin);
      if (send(fd, reply.bytes.data() + begin, n_bytes, MSG_NOSIGNAL) < 0) return;
    }
  }

  static HubRequest Parse(const std::string& head) {
    HubRequest request;
    size_t begin = head.find("\r\n") + 2;
    const std::string line = head.substr(0, begin - 2);
    const size_t space = line.find(' ');
    request.method = line.substr(0, space);
    request.target = line.substr(space + 1, line.rfind(' ') - space - 1);
    for (size_t end = head.find("\r\n", begin); end != std::string::npos;
         begin = end + 2, end = head.find("\r\n", begin)) {
      const size_t colon = head.find(':', begin);
      std::string name = head.substr(begin, colon - begin);
      for (char& c : name) c = static_cast<char>(tolower(c));
      request.fields[name] = head.substr(colon + 2, end - colon - 2);
    }
    return request;
  }

  const Handler handler_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::thread acceptor_;
  std::vector<std::thread> connections_;
  mutable std::mutex mutex_;  // guards requests_
  std::vector<HubRequest> requests_;
};

}  // namespace tandem::tests
