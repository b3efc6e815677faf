#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace tandem::server {

// A client that sends exactly the given bytes. A read waits at most ten seconds; a test that
// reaches this limit has failed.
class RawClient {
 public:
  struct Reply {
    int status = 0;
    std::map<std::string, std::string> headers;  // lower-case names
    std::string body;                            // chunks joined
    bool complete = false;
  };

  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      ADD_FAILURE() << "connect: " << strerror(errno);
    }
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;  // closed by the server; the reply shows why
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  uint16_t local_port() const {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    return ntohs(address.sin_port);
  }
  void ShutdownSend() { shutdown(fd_, SHUT_WR); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  // Returns the next reply; `complete` is false if the server closed before its end.
  Reply Read(bool is_head = false) {
    Reply reply;
    size_t head_end = 0;
    while ((head_end = input_.find("\r\n\r\n")) == std::string::npos) {
      if (!Fill()) return reply;
    }
    ParseHead(std::string_view(input_).substr(0, head_end + 2), reply);
    input_.erase(0, head_end + 4);
    reply.complete = true;
    if (is_head || reply.status == 204 || reply.status == 100) return reply;
    if (const auto length = reply.headers.find("content-length"); length != reply.headers.end()) {
      const size_t n = std::stoul(length->second);
      while (input_.size() < n) {
        if (!Fill()) {
          reply.complete = false;
          break;
        }
      }
      reply.body = input_.substr(0, n);
      input_.erase(0, n);
    } else if (reply.headers.contains("transfer-encoding")) {
      reply.complete = ReadChunks(reply.body);
    } else {
      while (Fill()) {
      }
      reply.body = std::exchange(input_, {});
    }
    return reply;
  }

  // Reads until `text` has arrived, undecoded; false if the server closed before.
  bool ReadUntil(std::string_view text) {
    while (input_.find(text) == std::string::npos) {
      if (!Fill()) return false;
    }
    return true;
  }
  const std::string& input() const { return input_; }

  // For bytes that are not HTTP: reads any bytes; false if the server has closed.
  bool ReadSome() { return Fill(); }
  std::string TakeInput() { return std::exchange(input_, {}); }

  // True if the server closes within the limit of a read and sends nothing more.
  bool IsClosedByServer() {
    while (Fill()) {
    }
    return input_.empty() && !timed_out_;
  }

 private:
  bool Fill() {
    pollfd waiting{fd_, POLLIN, 0};
    if (poll(&waiting, 1, 10'000) <= 0) {
      timed_out_ = true;
      return false;
    }
    char buffer[65536];
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
    if (n <= 0) return false;
    input_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  static void ParseHead(std::string_view head, Reply& reply) {
    reply.status = std::stoi(std::string(head.substr(9, 3)));
    size_t at = head.find("\r\n") + 2;
    while (at < head.size()) {
      const size_t end = head.find("\r\n", at);
      const std::string_view line = head.substr(at, end - at);
      const size_t colon = line.find(": ");
      reply.headers[std::string(line.substr(0, colon))] = std::string(line.substr(colon + 2));
      at = end + 2;
    }
  }

  bool ReadChunks(std::string& body) {
    for (;;) {
      size_t line_end = 0;
      while ((line_end = input_.find("\r\n")) == std::string::npos) {
        if (!Fill()) return false;
      }
      const size_t n = std::stoul(input_.substr(0, line_end), nullptr, 16);
      while (input_.size() < line_end + 2 + n + 2) {
        if (!Fill()) return false;
      }
      body += input_.substr(line_end + 2, n);
      input_.erase(0, line_end + 2 + n + 2);
      if (n == 0) return true;
    }
  }

  int fd_ = -1;
  std::string input_;
  bool timed_out_ = false;
};

}  // namespace tandem::server
