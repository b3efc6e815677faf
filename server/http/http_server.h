#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/log.h"
#include "server/http/options.h"
#include "server/http/request.h"
#include "server/http/router.h"

namespace tandem::server {

// A request that is over: answered to the last byte handed to the socket, or left by its client.
struct RequestSummary {
  std::string_view request_id;
  std::string_view method;      // as sent, so any bytes
  std::string_view route;       // the pattern; empty: none was found
  std::string_view path;        // as sent, percent-decoded
  std::string_view remote;      // address and port of the client
  int status = 0;               // 499: the client left before its answer was complete
  std::string_view error_code;  // Response::error_code of the answer
  std::chrono::steady_clock::duration elapsed;
  LogFields notes;  // what handlers noted through ResponseWriter::Note
};

// What this room cannot know: how a fault looks as a body, and who may come in.
struct HttpPolicy {
  // The answer to a request that no handler sees. An empty code is null in the body.
  std::function<Response(int status, std::string_view code, std::string_view message)> refusal;
  // The answer to an exception that left a handler.
  std::function<Response(std::exception_ptr exception, const Request& request)> exception;
  // Checked after the route is known and before the body counts; an answer refuses the request.
  std::function<std::optional<Response>(const Request& request, Access access)> gate;
  // Asked once per request that passed the gate, on an io thread, before the request waits for a
  // thread: an answer refuses it. May set `client` and `admission`, and headers of the answer. May
  // not wait.
  std::function<std::optional<Response>(Request& request, const Route& route,
                                        const ResponseWriter& writer)>
      admit;
  // Told of every request that is over, on an io thread. May not wait.
  std::function<void(const RequestSummary& summary)> on_end;
};

// Listens, reads requests, runs their handlers and sends the answers. Built in order: construct
// (binds, so `port()` is known), Start, …, Drain, WaitDrained, Stop. Methods may be called from any
// thread, but not from handlers.
class HttpServer {
 public:
  // Throws kInvalidArgument for a bad address and kUnavailable when the port cannot be bound,
  // naming the flag that changes it.
  HttpServer(HttpOptions options, std::vector<Route> routes, HttpPolicy policy);
  ~HttpServer();  // as Stop
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  void Start();
  // What connections from now on are shown. Throws kInvalidArgument, and changes nothing, if the
  // pair cannot be used. REQUIRES: the server was built with TLS.
  void ReplaceCertificate(const TlsPair& pair);

  // Closes idle connections. Later requests get 503 `shutting_down` and their connections close.
  // The open routes still answer, so that a load balancer sees /ready change.
  void Drain();
  // True when every accepted request has been answered and sent within the time.
  bool WaitDrained(std::chrono::milliseconds timeout);
  // Stops accepting and ends what is left: an error event in streams, 503 elsewhere. Then closes
  // everything and joins the threads. Handlers still running are waited for.
  void Stop();

  size_t open_connections() const;
  size_t running_requests() const;  // accepted and not completely sent
  bool is_draining() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::server
