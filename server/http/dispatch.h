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

// Passes requests to their handlers. Knows no connection: answers go through a channel, and `wake`
// notifies its reader.

// Answers a request that must not reach a handler, and preflights. Reasons to refuse are a foreign
// Host or Origin, an unknown route, a wrong method, a missing key, a content coding, or a draining
// server. For all other requests `match` holds the route. Reads the head only.
std::optional<Response> CheckHead(const ConnectionShared& shared, const Request& head,
                                  Router::Match& match);

// The sink for a body, or the answer that refuses it. The request has passed CheckHead, and its
// route has open_body.
struct OpenedBody {
  std::shared_ptr<BodySink> sink;
  std::optional<Response> refused;
};
OpenedBody OpenBodyOf(const ConnectionShared& shared, const Route& route, const Request& head,
                      std::function<void()> has_room);

// Creates the channel of one request. Its tasks run on the answer thread; see ResponseChannel for
// `wake`.
std::shared_ptr<ResponseChannel> OpenChannel(const std::shared_ptr<ConnectionShared>& shared,
                                             const Request& head, std::function<void()> wake);

// Runs the handler on the thread that its route asks for, or answers 503. `route` belongs to
// shared's router.
void RunHandler(const std::shared_ptr<ConnectionShared>& shared, const Route& route,
                Request request, std::shared_ptr<ResponseChannel> channel);

// Ends the current answer because the server is stopping, and notifies its producer. `style`: of
// the route; null for OpenAI's.
void AbortForShutdown(const HttpPolicy& policy, const Request& head, const ApiStyle* style,
                      ResponseChannel& channel);

}  // namespace tandem::server
