#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem::server {

// A certificate chain and its private key, as PEM text.
struct TlsPair {
  std::string certificate_chain_pem;
  std::string private_key_pem;
};

// What one HTTP server allows and how long it waits. Tests use small values; the defaults are
// CONTRACT §5.
struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;               // 0 picks a free one
  int n_request_threads = 8;          // run handlers: parsing, templates, tokenising
  size_t max_queued_requests = 4096;  // waiting for a request thread; further ones get 503
  size_t max_queued_for_worker = 32;  // waiting for the worker; further ones get 503

  size_t max_connections = 4096;
  size_t max_request_line_bytes = 8 << 10;
  size_t max_header_bytes = 32 << 10;
  size_t max_headers = 100;
  size_t max_body_bytes = 32 << 20;
  size_t body_memory_bytes = 512 << 20;  // of all bodies in memory together; beyond it 503
  size_t max_pipelined_requests = 16;
  size_t max_output_bytes = 1 << 20;  // of one connection; beyond it the producer is told to pause
  // Of the kernel, behind those: without a bound it takes megabytes before a slow reader shows.
  int send_buffer_bytes = 256 << 10;

  std::chrono::milliseconds header_timeout{10'000};      // from the first byte, dribble or not
  std::chrono::milliseconds handshake_timeout{10'000};   // of TLS, from the connection's start
  std::chrono::milliseconds body_idle_timeout{30'000};   // without a byte
  std::chrono::milliseconds keep_alive_timeout{75'000};  // between requests
  std::chrono::milliseconds write_timeout{60'000};       // without progress, then reset
  std::chrono::milliseconds linger_timeout{2'000};       // reading on after a refusal, then close
  std::chrono::milliseconds ping_interval{15'000};       // `: ping` in a silent event stream
  // How soon a client's leaving is seen while its input is full and therefore not read.
  std::chrono::milliseconds leave_poll_interval{50};

  std::optional<TlsPair> tls;  // absent: plain HTTP

  // Names this server answers to beside localhost and `host`; "*" is every name. See AllowedHosts.
  std::vector<std::string> allowed_hosts;
  // The web origin whose pages may use this server; "*" is every one. Empty: every origin where
  // every caller needs a key, else the pages of this machine.
  std::string cors_origin;
  bool requires_key = false;
};

}  // namespace tandem::server
