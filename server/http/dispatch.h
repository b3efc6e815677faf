#pragma once

// Private to this room: includes Boost.

#include <functional>
#include <memory>
#include <optional>

#include "server/http/connection_shared.h"
#include "server/http/request.h"
#include "server/http/response_channel.h"
#include "server/http/router.h"

namespace tandem::server {

// From a request to the handler that answers it. Knows no connection: what is answered goes through
// a channel, and whoever reads that is woken.

// Answers a request that must not reach a handler. Reasons are a foreign Host or Origin, an unknown
// route, a wrong method, a missing key, a coded body, or a server that stops. Preflights end here
// too. For all other requests `match` is the handler. Needs the head only.
std::optional<Response> CheckHead(const ConnectionShared& shared, const Request& head,
                                  Router::Match& match);

// Of a request that CheckHead lets through to `route`, which has open_body: where its body goes, or
// the answer that refuses it.
struct OpenedBody {
  std::shared_ptr<BodySink> sink;
  std::optional<Response> refused;
};
OpenedBody OpenBodyOf(const ConnectionShared& shared, const Route& route, const Request& head,
                      std::function<void()> has_room);

// The channel of one request. Its tasks run on the answer thread; `wake` as ResponseChannel says.
std::shared_ptr<ResponseChannel> OpenChannel(const std::shared_ptr<ConnectionShared>& shared,
                                             const Request& head, std::function<void()> wake);

// Runs the handler where its route wants to run, or refuses. `route` is one of shared's.
void RunHandler(const std::shared_ptr<ConnectionShared>& shared, const Route& route,
                Request request, std::shared_ptr<ResponseChannel> channel);

// The server is stopping: ends the answer in hand, and tells its producer.
void AbortForShutdown(const HttpPolicy& policy, ResponseChannel& channel);

}  // namespace tandem::server
