#include "bench/client/http_target.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>

#include "bench/client/http_response_parser.h"
#include "bench/client/timed_receive.h"
#include "engine/base/error.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Refuses a text that could smuggle in another header.
void RequireOneLine(const std::string& text, const char* what) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7f) {
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(what) + " must not contain spaces or control characters");
    }
  }
}

[[noreturn]] void Unreachable(const HttpTarget& target, const std::string& why) {
  throw Error(ErrorCode::kUnavailable, target.url() + ": " + why);
}

// Waits for `events` on the socket.
void Await(const Socket& socket, short events, const HttpTarget& target, Clock::time_point end) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) {
      throw Error(ErrorCode::kDeadlineExceeded, target.url() + " did not answer in time");
    }
    pollfd wanted{.fd = socket.fd(), .events = events, .revents = 0};
    const int ready = poll(&wanted, 1, static_cast<int>(left));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) Unreachable(target, std::strerror(errno));
  }
}

}  // namespace

HttpTarget ParseTarget(const std::string& url, const std::string& api_key) {
  const auto fault = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, "the URL '" + url + "' " + why);
  };
  std::string_view rest = url;
  constexpr std::string_view kScheme = "http://";
  if (!rest.starts_with(kScheme)) throw fault("must begin with http://");
  rest.remove_prefix(kScheme.size());
  RequireOneLine(url, "a URL");
  HttpTarget target;
  target.api_key = api_key;
  RequireOneLine(api_key, "an API key");

  const size_t slash = rest.find('/');
  std::string_view authority = rest.substr(0, slash);
  if (slash != std::string_view::npos) target.prefix = rest.substr(slash);
  while (target.prefix.ends_with('/')) target.prefix.pop_back();
  if (target.prefix.ends_with("/v1")) target.prefix.resize(target.prefix.size() - 3);

  std::string_view port = "80";
  if (authority.starts_with('[')) {  // IPv6 address
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) throw fault("has a '[' without ']'");
    target.host = authority.substr(1, end - 1);
    authority.remove_prefix(end + 1);
    if (!authority.empty() && !authority.starts_with(':'))
      throw fault("must have a port after ']'");
    if (!authority.empty()) port = authority.substr(1);
  } else {
    const size_t colon = authority.find(':');
    target.host = authority.substr(0, colon);
    if (colon != std::string_view::npos) port = authority.substr(colon + 1);
  }
  target.port = port;
  if (target.host.empty()) throw fault("must name a host");
  if (port.empty() || port.find_first_not_of("0123456789") != std::string_view::npos) {
    throw fault("must have a numeric port");
  }
  return target;
}

std::string HttpTarget::Request(const std::string& method, const std::string& path,
                                const std::string& body, bool keep_alive) const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  std::string request = method + " " + prefix + path +
                        " HTTP/1.1\r\nHost: " + (is_ipv6 ? "[" + host + "]" : host) + ":" + port +
                        "\r\n";
  if (!api_key.empty()) request += "Authorization: Bearer " + api_key + "\r\n";
  if (!keep_alive) request += "Connection: close\r\n";
  if (!body.empty()) {
    request += "Content-Type: application/json\r\nContent-Length: ";
    request += std::to_string(body.size()) + "\r\n";
  }
  return request + "\r\n" + body;
}

void Socket::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Address Address::Resolve(const HttpTarget& target) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int fault = getaddrinfo(target.host.c_str(), target.port.c_str(), &wanted, &found);
  if (fault != 0) Unreachable(target, gai_strerror(fault));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  // A name may have several addresses; takes the first that accepts.
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    Address address;
    address.family_ = at->ai_family;
    address.bytes_.assign(reinterpret_cast<const char*>(at->ai_addr), at->ai_addrlen);
    if (found->ai_next == nullptr) return address;
    const Socket probe(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (probe && connect(probe.fd(), at->ai_addr, at->ai_addrlen) == 0) return address;
  }
  Unreachable(target, std::strerror(errno));
}

Socket Address::StartConnecting() const {
  Socket made(socket(family_, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made) return made;
  const int one = 1;
  setsockopt(made.fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  const auto* where = reinterpret_cast<const sockaddr*>(bytes_.data());
  if (connect(made.fd(), where, static_cast<socklen_t>(bytes_.size())) != 0 &&
      errno != EINPROGRESS) {
    const int why = errno;
    made.Close();
    errno = why;
  }
  return made;
}

HttpAnswer Ask(const HttpTarget& target, const std::string& method, const std::string& path,
               const std::string& body, double timeout_s) {
  const auto end = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  const Socket socket = Address::Resolve(target).StartConnecting();
  if (!socket) Unreachable(target, std::strerror(errno));
  NoteArrivals(socket.fd());
  std::string request = target.Request(method, path, body, false);
  std::string_view unsent = request;
  while (!unsent.empty()) {
    Await(socket, POLLOUT, target, end);
    const ssize_t sent = send(socket.fd(), unsent.data(), unsent.size(), MSG_NOSIGNAL);
    if (sent > 0) unsent.remove_prefix(static_cast<size_t>(sent));
    if (sent < 0 && errno != EAGAIN && errno != EINTR) Unreachable(target, std::strerror(errno));
  }
  HttpResponseParser parser;
  HttpAnswer answer;
  char buffer[16 << 10];
  while (!parser.done()) {
    Await(socket, POLLIN, target, end);
    const auto [got, age_s] = ReceiveTimed(socket.fd(), buffer, sizeof buffer);
    if (got < 0) {
      if (errno == EAGAIN || errno == EINTR) continue;
      Unreachable(target, std::strerror(errno));
    }
    if (got == 0) {
      if (!parser.EndOfConnection()) Unreachable(target, "closed the connection early");
      break;
    }
    answer.age_s = age_s;
    parser.Feed({buffer, static_cast<size_t>(got)}, answer.body);
  }
  answer.status = parser.status();
  return answer;
}

}  // namespace tandem::bench
