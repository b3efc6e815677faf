#include "engine/hub/net_stream.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/check.h"

namespace tandem::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxProxyHeadBytes = size_t{16} << 10;

[[noreturn]] void ThrowTransient(const std::string& message) {
  throw TransientFault(ErrorCode::kUnavailable, message);
}

[[noreturn]] void ThrowPrivate(const std::string& origin) {
  throw Error(ErrorCode::kPermissionDenied,
              origin + " is on a private network; the hub must not redirect downloads there");
}

bool IsPrivate4(uint32_t address) {
  const auto within = [&](uint32_t network, int bits) {
    return (address >> (32 - bits)) == (network >> (32 - bits));
  };
  return within(0x7f000000, 8) || within(0x0a000000, 8) || within(0xac100000, 12) ||
         within(0xc0a80000, 16) || within(0xa9fe0000, 16) || within(0x64400000, 10) ||
         within(0x00000000, 8);
}

// Loopback, link-local and private addresses, to which a server on the internet must not redirect.
bool IsPrivate(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, address, sizeof(v4));
    return IsPrivate4(ntohl(v4.sin_addr.s_addr));
  }
  if (address->sa_family != AF_INET6) return true;
  sockaddr_in6 v6{};
  std::memcpy(&v6, address, sizeof(v6));
  const in6_addr& ip = v6.sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&ip)) {
    uint32_t v4 = 0;
    std::memcpy(&v4, &ip.s6_addr[12], sizeof(v4));
    return IsPrivate4(ntohl(v4));
  }
  return IN6_IS_ADDR_LOOPBACK(&ip) || IN6_IS_ADDR_LINKLOCAL(&ip) || IN6_IS_ADDR_UNSPECIFIED(&ip) ||
         (ip.s6_addr[0] & 0xfe) == 0xfc;
}

struct AddressesFree {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

std::string TlsReason() {
  std::array<char, 160> text{};
  const unsigned long code = ERR_peek_last_error();
  if (code != 0) ERR_error_string_n(code, text.data(), text.size());
  ERR_clear_error();
  return code != 0 ? text.data() : "connection closed";
}

int RemainingMs(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max() - 1)) + 1;
}

// OpenSSL's own places are those of the system that it was built on. The portable program runs on
// others too, which keep their certificate authorities in one of these files.
constexpr std::array kAuthorityFiles{
    "/etc/ssl/certs/ca-certificates.crt",  // Debian, Ubuntu, Arch, Gentoo
    "/etc/pki/tls/certs/ca-bundle.crt",    // Fedora, RHEL, Amazon Linux
    "/etc/ssl/ca-bundle.pem",              // openSUSE
    "/etc/ssl/cert.pem",                   // Alpine
};

// Reads SSL_CERT_FILE and SSL_CERT_DIR as OpenSSL does. Throws for a file that holds no
// certificate.
void UseSystemAuthorities(SSL_CTX* context) {
  bool is_ok = SSL_CTX_set_default_verify_paths(context) == 1;
  const bool is_chosen = std::getenv(X509_get_default_cert_file_env()) != nullptr ||
                         std::getenv(X509_get_default_cert_dir_env()) != nullptr;
  const bool has_default = access(X509_get_default_cert_file(), R_OK) == 0 ||
                           access(X509_get_default_cert_dir(), R_OK) == 0;
  if (is_ok && !is_chosen && !has_default) {
    for (const char* file : kAuthorityFiles) {
      if (access(file, R_OK) != 0) continue;
      is_ok = SSL_CTX_load_verify_file(context, file) == 1;
      break;
    }
  }
  if (!is_ok) {
    throw Error(ErrorCode::kFailedPrecondition,
                "could not read the system's certificate authorities (" + TlsReason() + ")");
  }
}

bool IsIpAddress(const std::string& host) {
  in6_addr unused{};
  return inet_pton(AF_INET, host.c_str(), &unused) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &unused) == 1;
}

std::string Base64(const std::string& text) {
  std::string out(4 * ((text.size() + 2) / 3) + 1, '\0');
  const int n = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                reinterpret_cast<const unsigned char*>(text.data()),
                                static_cast<int>(text.size()));
  out.resize(static_cast<size_t>(n));
  return out;
}

}  // namespace

StopEvent::StopEvent(std::stop_token token)
    : token_(std::move(token)),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      callback_(token_, Raise{event_.get()}) {
  TANDEM_CHECK(event_.get() >= 0);
}

void StopEvent::Raise::operator()() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd, &one, sizeof(one));
}

void StopEvent::ThrowIfStopped() const {
  if (token_.stop_requested()) throw Error(ErrorCode::kCancelled, "interrupted");
}

void StopEvent::Sleep(std::chrono::milliseconds duration) const {
  const Clock::time_point end = Clock::now() + duration;
  while (Clock::now() < end) {
    ThrowIfStopped();
    pollfd waited{fd(), POLLIN, 0};
    poll(&waited, 1, RemainingMs(end));
  }
  ThrowIfStopped();
}

void TlsClientContext::Free::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }

TlsClientContext::TlsClientContext() : context_(SSL_CTX_new(TLS_client_method())) {
  SSL_CTX* const context = context_.get();
  TANDEM_CHECK(context != nullptr);
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  UseSystemAuthorities(context);
  ERR_clear_error();
}

void NetStream::FreeTls::operator()(ssl_st* session) const { SSL_free(session); }

NetStream::NetStream(const NetRoute& route, const TlsClientContext& tls,
                     const NetTimeouts& timeouts, const StopEvent& stop)
    : stop_(stop), timeouts_(timeouts) {
  stop_.ThrowIfStopped();
  if (route.proxy) {
    if (route.forbids_private && IsPrivateHost(route.server.host)) {
      ThrowPrivate(route.server.Origin());
    }
    peer_ = "proxy " + route.proxy->Origin();
    ConnectTo(route.proxy->host, route.proxy->port, false);
    if (route.server.is_https) OpenTunnel(route);
  } else {
    peer_ = route.server.Origin();
    ConnectTo(route.server.host, route.server.port, route.forbids_private);
  }
  if (route.server.is_https) {
    peer_ = route.server.Origin();
    Handshake(tls, route.server.host);
  }
}

NetStream::~NetStream() {
  // Does not wait for close_notify: responses are complete by their length.
  if (tls_) SSL_shutdown(tls_.get());
  ERR_clear_error();
}

void NetStream::Wait(short events, Clock::time_point deadline, const char* doing) {
  for (;;) {
    stop_.ThrowIfStopped();
    if (Clock::now() >= deadline) {
      throw TransientFault(ErrorCode::kDeadlineExceeded, peer_ + ": timed out while " + doing);
    }
    std::array<pollfd, 2> waited{pollfd{socket_.get(), events, 0}, pollfd{stop_.fd(), POLLIN, 0}};
    const int n = poll(waited.data(), waited.size(), RemainingMs(deadline));
    if (n < 0 && errno != EINTR) ThrowTransient(peer_ + ": poll: " + std::strerror(errno));
    if (n > 0 && waited[0].revents != 0) return;
  }
}

void NetStream::ConnectTo(const std::string& host, uint16_t port, bool forbids_private) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int fault = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  const std::unique_ptr<addrinfo, AddressesFree> addresses(list);
  if (fault != 0) {
    ThrowTransient(peer_ + ": could not look up the host name (" +
                   (fault == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(fault)) + ")");
  }
  // Connects to the checked addresses; a second look-up could return others.
  std::string last = "no address";
  bool was_refused = false;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    const bool is_private = IsPrivate(at->ai_addr);
    if (is_private && forbids_private) {
      was_refused = true;
      continue;
    }
    socket_ = FileDescriptor(
        socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol));
    if (socket_.get() < 0) {
      last = std::strerror(errno);
      continue;
    }
    int error = connect(socket_.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      const auto timed_out = ExceptionOf<TransientFault>(
          [&] { Wait(POLLOUT, Clock::now() + timeouts_.connect, "connecting"); });
      socklen_t bytes = sizeof(error);
      getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
      if (timed_out) error = ETIMEDOUT;  // try the next address
    }
    if (error == 0) {
      const int on = 1;
      setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      is_private_ = is_private;
      return;
    }
    last = std::strerror(error);
  }
  if (was_refused) ThrowPrivate(peer_);
  ThrowTransient(peer_ + ": " + last);
}

void NetStream::OpenTunnel(const NetRoute& route) {
  const Url& server = route.server;
  const std::string host =
      server.host.find(':') == std::string::npos ? server.host : '[' + server.host + ']';
  const std::string authority = host + ':' + std::to_string(server.port);
  std::string request = "CONNECT " + authority + " HTTP/1.1\r\nHost: " + authority + "\r\n";
  if (const std::string credentials = ProxyAuthorization(*route.proxy); !credentials.empty()) {
    request += "Proxy-Authorization: " + credentials + "\r\n";
  }
  const Clock::time_point deadline = Clock::now() + timeouts_.connect;
  WritePlain(request + "\r\n", deadline);

  // Reads byte by byte, because the bytes after the head belong to the server.
  std::string head;
  while (!head.ends_with("\r\n\r\n")) {
    char byte = 0;
    if (ReadPlain({&byte, 1}, deadline) == 0) ThrowTransient(peer_ + " closed the connection");
    head.push_back(byte);
    if (head.size() > kMaxProxyHeadBytes) {
      throw Error(ErrorCode::kDataLoss, peer_ + " did not send an HTTP response");
    }
  }
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const bool is_http = head.starts_with("HTTP/1.") && head.size() > 12 && head[8] == ' ' &&
                       std::all_of(head.begin() + 9, head.begin() + 12, is_digit);
  const std::string status = is_http ? head.substr(9, 3) : "";
  if (status == "407") {
    throw Error(
        ErrorCode::kPermissionDenied,
        peer_ +
            " requires a user name and a password: set HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT");
  }
  if (!status.starts_with('2')) {
    const std::string message = peer_ + " refused a tunnel to " + authority +
                                (is_http ? " (status " + status + ")" : ": the answer is not HTTP");
    if (status.starts_with('5')) ThrowTransient(message);
    throw Error(ErrorCode::kUnavailable, message);
  }
}

void NetStream::Handshake(const TlsClientContext& tls, const std::string& host) {
  ERR_clear_error();
  tls_.reset(SSL_new(tls.get()));
  TANDEM_CHECK(tls_ != nullptr && SSL_set_fd(tls_.get(), socket_.get()) == 1);
  if (IsIpAddress(host)) {
    TANDEM_CHECK(X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls_.get()), host.c_str()) == 1);
  } else {
    SSL_set_hostflags(tls_.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    TANDEM_CHECK(SSL_set1_host(tls_.get(), host.c_str()) == 1);
    TANDEM_CHECK(SSL_set_tlsext_host_name(tls_.get(), host.c_str()) == 1);
  }
  const Clock::time_point deadline = Clock::now() + timeouts_.connect;
  for (;;) {
    ERR_clear_error();
    const int result = SSL_connect(tls_.get());
    if (result == 1) return;
    const long verdict = SSL_get_verify_result(tls_.get());
    if (verdict != X509_V_OK) {
      ERR_clear_error();
      throw Error(ErrorCode::kPermissionDenied,
                  peer_ + ": the server's certificate is not trusted (" +
                      X509_verify_cert_error_string(verdict) +
                      "); set SSL_CERT_FILE to trust other authorities than the system's");
    }
    WaitForTls(result, deadline, "negotiating TLS");
  }
}

void NetStream::WaitForTls(int result, Clock::time_point deadline, const char* doing) {
  switch (SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Wait(POLLIN, deadline, doing);
    case SSL_ERROR_WANT_WRITE:
      return Wait(POLLOUT, deadline, doing);
    default:
      ThrowTransient(peer_ + ": TLS failed while " + doing + " (" + TlsReason() + ")");
  }
}

size_t NetStream::ReadPlain(std::span<char> out, Clock::time_point deadline) {
  for (;;) {
    const ssize_t n = recv(socket_.get(), out.data(), out.size(), 0);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      ThrowTransient(peer_ + ": " + std::strerror(errno));
    }
    Wait(POLLIN, deadline, "reading");
  }
}

void NetStream::WritePlain(std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t n = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      Wait(POLLOUT, deadline, "writing");
    } else if (errno != EINTR) {
      ThrowTransient(peer_ + ": " + std::strerror(errno));
    }
  }
}

size_t NetStream::Read(std::span<char> out) {
  stop_.ThrowIfStopped();
  const Clock::time_point deadline = Clock::now() + timeouts_.idle;
  if (!tls_) return ReadPlain(out, deadline);
  for (;;) {
    ERR_clear_error();
    size_t n = 0;
    const int result = SSL_read_ex(tls_.get(), out.data(), out.size(), &n);
    if (result == 1) return n;
    if (SSL_get_error(tls_.get(), result) == SSL_ERROR_ZERO_RETURN) return 0;
    WaitForTls(result, deadline, "reading");
  }
}

void NetStream::Write(std::string_view bytes) {
  const Clock::time_point deadline = Clock::now() + timeouts_.idle;
  if (!tls_) return WritePlain(bytes, deadline);
  while (!bytes.empty()) {
    ERR_clear_error();
    size_t n = 0;
    const int result = SSL_write_ex(tls_.get(), bytes.data(), bytes.size(), &n);
    if (result == 1) {
      bytes.remove_prefix(n);
    } else {
      WaitForTls(result, deadline, "writing");
    }
  }
}

bool IsPrivateHost(const std::string& host) {
  if (host == "localhost" || host.ends_with(".localhost")) return true;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;  // no look-up
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) return false;
  const std::unique_ptr<addrinfo, AddressesFree> addresses(list);
  return IsPrivate(list->ai_addr);
}

std::optional<Url> ProxyFor(const Url& url, const std::string& https_proxy,
                            const std::string& http_proxy, const std::string& no_proxy) {
  const std::string& proxy = url.is_https ? https_proxy : http_proxy;
  if (proxy.empty()) return std::nullopt;
  for (size_t begin = 0; begin < no_proxy.size();) {
    const size_t end = std::min(no_proxy.find_first_of(", ", begin), no_proxy.size());
    std::string entry = no_proxy.substr(begin, end - begin);
    begin = end + 1;
    std::transform(entry.begin(), entry.end(), entry.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    if (entry == "*") return std::nullopt;
    // A single colon separates a port; an IPv6 address has more.
    if (const size_t colon = entry.find(':');
        colon != std::string::npos && colon == entry.rfind(':')) {
      if (entry.substr(colon + 1) != std::to_string(url.port)) continue;
      entry.resize(colon);
    }
    while (entry.starts_with('.') || entry.starts_with('*')) entry.erase(0, 1);
    if (entry.empty()) continue;
    if (url.host == entry || url.host.ends_with('.' + entry)) return std::nullopt;
  }
  return ParseUrl(proxy);
}

std::string ProxyAuthorization(const Url& proxy) {
  if (proxy.user_info.empty()) return {};
  const size_t colon = std::min(proxy.user_info.find(':'), proxy.user_info.size());
  const std::string user = PercentDecode(proxy.user_info.substr(0, colon)).value_or("");
  const std::string password = colon == proxy.user_info.size()
                                   ? ""
                                   : PercentDecode(proxy.user_info.substr(colon + 1)).value_or("");
  return "Basic " + Base64(user + ':' + password);
}

}  // namespace tandem::engine
