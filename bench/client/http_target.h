#pragma once

#include <cstdint>
#include <string>

namespace tandem::bench {

// A server, given by a base URL as for OpenAI clients: http://host:port, with or without /v1. Plain
// HTTP only, since a load generator runs near the server.
struct HttpTarget {
  std::string host;
  std::string port;
  std::string prefix;   // of paths: "" or "/gateway"
  std::string api_key;  // bearer token; empty: none

  std::string url() const { return "http://" + host + ":" + port + prefix; }
  // Returns the bytes of a request to a path such as "/v1/models".
  std::string Request(const std::string& method, const std::string& path, const std::string& body,
                      bool keep_alive) const;
};

// Throws kInvalidArgument.
HttpTarget ParseTarget(const std::string& url, const std::string& api_key);

// Owns a socket and closes it.
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

// A resolved address. Resolving may block, so it happens once.
class Address {
 public:
  // Throws kUnavailable.
  static Address Resolve(const HttpTarget& target);
  // Starts a non-blocking connection; the socket becomes writable when it is established or has
  // failed. On failure to start, returns an empty socket and sets errno.
  Socket StartConnecting() const;

 private:
  int family_ = 0;
  std::string bytes_;  // a sockaddr
};

struct HttpAnswer {
  int status = 0;
  std::string body;
  double age_s = 0;  // time in the socket of the last bytes, if NoteArrivals is in effect
};

// Sends one request on a new connection and waits for the answer. Throws kUnavailable,
// kDeadlineExceeded or kDataLoss.
HttpAnswer Ask(const HttpTarget& target, const std::string& method, const std::string& path,
               const std::string& body, double timeout_s);

}  // namespace tandem::bench
