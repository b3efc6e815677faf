#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "server/http/options.h"
#include "server/http/request.h"
#include "server/http/router.h"

namespace tandem::server {

// A finished request: its last byte went to the socket, or its client left.
struct RequestSummary {
  std::string_view request_id;
  std::string_view method;      // as sent, so any bytes
  std::string_view route;       // the pattern; empty: no route matched
  std::string_view path;        // percent-decoded once
  std::string_view remote;      // address and port of the client
  int status = 0;               // 499: the client left before its answer was complete
  std::string_view error_code;  // Response::error_code of the answer
  std::chrono::steady_clock::duration elapsed;
  LogFields notes;  // from ResponseWriter::Note
};

// Decisions that this room leaves to its owner: error bodies, access, and reports.
struct HttpPolicy {
  // The answer to a request that reaches no handler. An empty code is null in the body.
  std::function<Response(int status, std::string_view code, std::string_view message)> refusal;
  // The answer to an exception of a handler, as ToError describes it.
  std::function<Response(const Error& error, const Request& request)> failure;
  // Called when the route is known and before the body uses memory. An answer refuses the request.
  std::function<std::optional<Response>(const Request& request, Access access)> gate;
  // Called on the io thread for each request that passed the gate, before it waits for a thread. An
  // answer refuses the request. May set `client`, `admission` and headers of the answer. Must not
  // block.
  std::function<std::optional<Response>(Request& request, const Route& route,
                                        const ResponseWriter& writer)>
      admit;
  // Called on the io thread for each finished request. Must not block.
  std::function<void(const RequestSummary& summary)> on_end;
};

// Listens, reads requests, runs their handlers and sends the answers. Order of use: construct
// (binds, so `port()` is known), Start, …, Drain, WaitDrained, Stop. Any thread may call the
// methods, except from a handler.
class HttpServer {
 public:
  // Throws kInvalidArgument for a bad address and kUnavailable if the port cannot be bound. The
  // message names the flag to change.
  HttpServer(HttpOptions options, std::vector<Route> routes, HttpPolicy policy);
  ~HttpServer();  // as Stop
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  void Start();
  // Sets the certificate of new connections. Throws kInvalidArgument, without a change, for an
  // unusable pair. REQUIRES: the server was built with TLS.
  void ReplaceCertificate(const TlsPair& pair);

  // Closes idle connections. Later requests get 503 `shutting_down`, and their connections close.
  // Open routes still answer, so that a load balancer sees /ready change.
  void Drain();
  // Returns true if every accepted request was answered and sent within `timeout`.
  bool WaitDrained(std::chrono::milliseconds timeout);
  // Stops accepting and ends running answers: streams with an error event, others with 503. Then
  // closes all connections and joins the threads; waits for running handlers.
  void Stop();

  size_t open_connections() const;
  size_t running_requests() const;  // accepted and not completely sent
  bool is_draining() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::server
