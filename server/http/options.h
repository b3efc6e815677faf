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

// Limits and timeouts of one HTTP server. server/README.md lists the flags; tests use small values.
struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;                 // 0 picks a free port
  std::string port_flag = "--port";     // sets the port; errors name it
  std::string thread_names = "tandem";  // prefix of the names of the threads, at most 6 bytes
  int n_request_threads = 8;            // threads for handlers: parsing, templates, tokenising
  size_t max_queued_requests = 4096;    // waiting for a request thread; more get 503
  size_t max_queued_for_worker = 32;    // waiting for the worker; more get 503
  size_t max_queued_for_worker_per_client = 8;  // of one API key

  size_t max_connections = 4096;
  size_t max_request_line_bytes = 8 << 10;
  size_t max_header_bytes = 32 << 10;
  size_t max_headers = 100;
  size_t max_body_bytes = 32 << 20;
  size_t body_memory_bytes = 512 << 20;  // all bodies in memory together; more get 503
  size_t max_pipelined_requests = 16;
  size_t max_output_bytes = 1 << 20;  // per connection; above it the producer must pause
  // The kernel's send buffer. Without this bound it takes megabytes before a slow reader shows.
  int send_buffer_bytes = 256 << 10;

  std::chrono::milliseconds header_timeout{10'000};      // from the first byte to the end of the
                                                         // head
  std::chrono::milliseconds handshake_timeout{10'000};   // TLS handshake, from the start of the
                                                         // connection
  std::chrono::milliseconds body_idle_timeout{30'000};   // without a received byte
  std::chrono::milliseconds keep_alive_timeout{75'000};  // between requests
  std::chrono::milliseconds write_timeout{60'000};       // without progress; then reset
  std::chrono::milliseconds linger_timeout{2'000};       // reading after a refusal; then close
  std::chrono::milliseconds ping_interval{15'000};       // `: ping` in a silent event stream
  // How often to check whether a client has left, while a full queue stops the reading.
  std::chrono::milliseconds leave_poll_interval{50};

  std::optional<TlsPair> tls;  // absent: plain HTTP

  // Accepted names besides localhost and `host`; "*" accepts every name. See AllowedHosts.
  std::vector<std::string> allowed_hosts;
  // The web origin whose pages may use this server; "*" permits all. Empty: all origins if every
  // caller needs a key, otherwise only pages of this machine and of installed programs.
  std::string cors_origin;
  bool requires_key = false;
};

}  // namespace tandem::server
