#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http/http_server.h"
#include "server/http/request.h"
#include "server/http/response_channel.h"
#include "server/http/router.h"

namespace tandem::server {

// A request that the server makes to itself: runs a route's handler without a connection and
// collects the answer. Skips HttpPolicy::gate and HttpPolicy::admit, so the owner sets
// Request::client. One thread at a time.
class LocalExchange {
 public:
  // Runs the handler on this thread. `notify` asks for a call of Advance. Any thread may call it,
  // also after the exchange has ended, so it must not own the exchange, block or throw.
  LocalExchange(std::shared_ptr<const HttpPolicy> policy, const Route& route, Request request,
                std::function<void()> notify);
  // Cancels an incomplete answer, as a client does that leaves.
  ~LocalExchange();
  LocalExchange(const LocalExchange&) = delete;
  LocalExchange& operator=(const LocalExchange&) = delete;

  const std::string& request_id() const { return head_.id; }

  // Runs the posted tasks of the answer. Returns the whole answer when it is complete, then nullopt
  // again. The body of a stream is all its bytes.
  std::optional<Response> Advance();

 private:
  const std::shared_ptr<const HttpPolicy> policy_;
  Request head_;  // without the body; for error reports
  std::shared_ptr<ResponseChannel> channel_;
  std::optional<Response> answer_;  // begun
  bool is_over_ = false;
};

}  // namespace tandem::server
