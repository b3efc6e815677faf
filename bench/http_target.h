#pragma once

#include <cstdint>
#include <string>

namespace tandem::bench {

// A server to ask, from a base URL such as OpenAI clients take: http://host:port, with or without
// the /v1. Plain HTTP only: a load generator runs beside what it measures.
struct HttpTarget {
  std::string host;
  std::string port;
  std::string prefix;   // of paths, "" or "/gateway"
  std::string api_key;  // sent as a bearer token; empty: none

  std::string url() const { return "http://" + host + ":" + port + prefix; }
  // The bytes of a request to a path such as "/v1/models".
  std::string Request(const std::string& method, const std::string& path, const std::string& body,
                      bool keep_alive) const;
};

// Throws kInvalidArgument.
HttpTarget ParseTarget(const std::string& url, const std::string& api_key);

// A socket; closes itself.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { Close(); }
  Socket(Socket&& other) noexcept : fd_(other.Release()) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = other.Release();
    }
    return *this;
  }
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void Close();

 private:
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  int fd_ = -1;
};

// Where a target's name leads; looked up once, as a look-up may block.
class Address {
 public:
  // Throws kUnavailable.
  static Address Resolve(const HttpTarget& target);
  // A non-blocking socket whose connection is under way; its end shows as writability. On failure
  // the socket is empty and errno tells why.
  Socket StartConnecting() const;

 private:
  int family_ = 0;
  std::string bytes_;  // a sockaddr
};

struct HttpAnswer {
  int status = 0;
  std::string body;
};

// One request on a connection of its own, waited for. Throws kUnavailable, kDeadlineExceeded or
// kDataLoss when there is no answer.
HttpAnswer Ask(const HttpTarget& target, const std::string& method, const std::string& path,
               const std::string& body, double timeout_s);

}  // namespace tandem::bench
