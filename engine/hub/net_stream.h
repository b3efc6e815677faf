#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/url.h"
#include "engine/io/posix_file.h"

struct ssl_ctx_st;
struct ssl_st;

namespace tandem::engine {

// A fault that a retry may cure: a cut connection, a timeout, an overloaded server.
struct TransientFault : Error {
  using Error::Error;
  TransientFault WithMessage(const std::string& message) const {
    TransientFault out(code(), message);
    out.retry_after = retry_after;
    return out;
  }

  std::optional<std::chrono::milliseconds> retry_after;
};

// A stop request as a descriptor for poll(). Any thread.
class StopEvent {
 public:
  explicit StopEvent(std::stop_token token);

  int fd() const { return event_.get(); }
  void ThrowIfStopped() const;
  // Sleeps. Throws kCancelled when stopped meanwhile.
  void Sleep(std::chrono::milliseconds duration) const;

 private:
  struct Raise {
    int fd;
    void operator()() const;
  };
  std::stop_token token_;
  FileDescriptor event_;
  std::stop_callback<Raise> callback_;
};

// Certificate check of servers: a chain to the system's authorities (SSL_CERT_FILE and SSL_CERT_DIR
// replace them) for the requested host name. All connections share it.
class TlsClientContext {
 public:
  TlsClientContext();
  ssl_ctx_st* get() const { return context_.get(); }

 private:
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };
  std::unique_ptr<ssl_ctx_st, Free> context_;
};

// How to reach a server.
struct NetRoute {
  Url server;
  std::optional<Url> proxy;      // http proxy; https uses a tunnel through it
  bool forbids_private = false;  // refuse loopback and private addresses
};

struct NetTimeouts {
  std::chrono::milliseconds connect;  // applies to connecting, the proxy's answer and the handshake
  std::chrono::milliseconds idle;
};

// One connection: TCP, a tunnel through the proxy if there is one, and TLS for https. Every wait
// ends with a timeout (TransientFault) or a stop (kCancelled). One thread at a time.
class NetStream {
 public:
  // Throws TransientFault when no address answers, and kPermissionDenied for an untrusted
  // certificate or a forbidden address.
  NetStream(const NetRoute& route, const TlsClientContext& tls, const NetTimeouts& timeouts,
            const StopEvent& stop);
  ~NetStream();
  NetStream(const NetStream&) = delete;
  NetStream& operator=(const NetStream&) = delete;

  // Reads at least one byte; returns 0 at the end of the stream.
  size_t Read(std::span<char> out);
  void Write(std::string_view bytes);

  // Whether the peer's address is loopback or private. Behind a proxy this is the proxy's address.
  bool is_private() const { return is_private_; }

 private:
  void ConnectTo(const std::string& host, uint16_t port, bool forbids_private);
  void OpenTunnel(const NetRoute& route);
  void Handshake(const TlsClientContext& tls, const std::string& host);
  // Waits until the socket is ready for `events`.
  void Wait(short events, std::chrono::steady_clock::time_point deadline, const char* doing);
  // Waits for the event that OpenSSL needs; throws when OpenSSL reports a fault.
  void WaitForTls(int result, std::chrono::steady_clock::time_point deadline, const char* doing);
  size_t ReadPlain(std::span<char> out, std::chrono::steady_clock::time_point deadline);
  void WritePlain(std::string_view bytes, std::chrono::steady_clock::time_point deadline);

  struct FreeTls {
    void operator()(ssl_st* session) const;
  };

  const StopEvent& stop_;
  const NetTimeouts timeouts_;
  std::string peer_;  // for messages
  FileDescriptor socket_;
  std::unique_ptr<ssl_st, FreeTls> tls_;
  bool is_private_ = false;
};

// Whether the host is `localhost` or a loopback or private address. Does not resolve names.
bool IsPrivateHost(const std::string& host);

// The proxy for a URL by the usual rules: NO_PROXY holds hosts, `.domains`, optional ports, or `*`.
std::optional<Url> ProxyFor(const Url& url, const std::string& https_proxy,
                            const std::string& http_proxy, const std::string& no_proxy);
// `Proxy-Authorization` value from a proxy's user info; empty without user info.
std::string ProxyAuthorization(const Url& proxy);

}  // namespace tandem::engine
