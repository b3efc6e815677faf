#pragma once

// Private to this room: includes Boost.

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/http/allowed_hosts.h"
#include "server/http/body_budget.h"
#include "server/http/http_server.h"
#include "server/http/net.h"
#include "server/http/request_pool.h"
#include "server/http/router.h"
#include "server/http/tls.h"

namespace tandem::server {

class Connection;

// State shared by all connections of one server. Outlives them.
struct ConnectionShared {
  ConnectionShared(HttpOptions the_options, std::vector<Route> routes, HttpPolicy the_policy)
      : options(std::move(the_options)),
        allowed_hosts(options),
        router(std::move(routes)),
        policy(std::move(the_policy)),
        body_budget(std::make_shared<BodyBudget>(options.body_memory_bytes)) {
    if (options.tls) tls = std::make_shared<const TlsContext>(*options.tls);
  }

  const HttpOptions options;
  const AllowedHosts allowed_hosts;
  const Router router;
  const HttpPolicy policy;
  std::atomic<bool> draining{false};

  net::io_context io;
  // Runs the shaping of answers on one thread, so that a large body never blocks the io thread.
  net::io_context answer_io;
  std::unique_ptr<RequestPool> pool;
  std::unique_ptr<RequestPool> worker;  // one thread; null without a route RunsOn::kWorker

  const std::shared_ptr<BodyBudget> body_budget;  // a shared_ptr, because a request can outlive
                                                  // this

  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;
  size_t n_running = 0;
  std::shared_ptr<const TlsContext> tls;  // for new connections; null: plain HTTP
};

}  // namespace tandem::server
