#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/request.h"
#include "server/http/response_writer.h"

namespace tandem::server {

using Handler = std::function<void(Request request, ResponseWriter writer)>;

// Who may use a route: anyone, holders of a key, the administrator; kMetricsKey is open unless
// there is a key for it.
enum class Access { kOpen, kApiKey, kAdminKey, kMetricsKey };
// kIoThread is for answers that must come at any load and never wait. kWorker is one thread for
// handlers that may take minutes: they leave the request pool free. Everything else runs on the
// request pool.
enum class RunsOn { kRequestPool, kIoThread, kWorker };

struct Route {
  std::string method;
  // Literal segments, `{name}` for one segment, `{name+}` for one or more (ids that hold '/').
  std::string pattern;
  Handler handler;
  Access access = Access::kApiKey;
  RunsOn runs_on = RunsOn::kRequestPool;
  bool is_heavy = false;      // HttpPolicy::admit may refuse it when there is too much to do
  OpenBody open_body = {};    // set: bodies go there while they arrive
  size_t max_body_bytes = 0;  // 0: HttpOptions::max_body_bytes
};

// Finds the route of a path. Immutable after construction. The pattern with the most literal
// segments wins, so `/v1/models/{id+}` never hides a more exact path.
class Router {
 public:
  explicit Router(std::vector<Route> routes);

  struct Match {
    const Route* route = nullptr;  // null: no such path, or no such method on it
    std::map<std::string, std::string> params;
    std::string allow;  // empty: no such path
  };
  // HEAD finds the GET route.
  Match Find(std::string_view method, std::string_view path) const;

 private:
  struct Pattern {
    std::vector<std::string> segments;
    size_t n_literals = 0;
    std::vector<Route> routes;  // one per method
  };
  std::vector<Pattern> patterns_;  // most literal segments first
};

}  // namespace tandem::server
