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

// Required key of a route: none, an API key with the scope infer or train, one with the scope
// admin. The admin key opens all. kMetricsKey is open unless a metrics key is configured.
enum class Access { kOpen, kApiKey, kTrainKey, kAdminKey, kMetricsKey };
// kIoThread: handlers that must answer under any load and never block. kWorker: one thread for
// handlers that can take minutes; they leave the request pool free. kRequestPool: all others.
enum class RunsOn { kRequestPool, kIoThread, kWorker };

struct Route {
  std::string method;
  // Segments: a literal, `{name}` for one segment, `{name+}` for one or more (ids with '/').
  std::string pattern;
  Handler handler;
  Access access = Access::kApiKey;
  RunsOn runs_on = RunsOn::kRequestPool;
  bool is_heavy = false;            // HttpPolicy::admit may refuse it under load
  OpenBody open_body = {};          // set: opens the sink of a body
  size_t max_body_bytes = 0;        // 0: HttpOptions::max_body_bytes
  const ApiStyle* style = nullptr;  // null: OpenAI's; lives as long as the program
};

// Maps a path to its route. Immutable. The pattern with the most literal segments wins, so
// `/v1/models/{id+}` never hides a more exact path.
class Router {
 public:
  explicit Router(std::vector<Route> routes);

  struct Match {
    const Route* route = nullptr;  // null: no such path, or no such method for it
    std::map<std::string, std::string> params;
    std::string allow;  // methods of the path; empty: no such path
  };
  // HEAD finds the GET route.
  Match Find(std::string_view method, std::string_view path) const;
  // The style of the path's routes; null for OpenAI's and for unknown paths.
  const ApiStyle* StyleOf(std::string_view path) const;

 private:
  struct Pattern {
    std::vector<std::string> segments;
    size_t n_literals = 0;
    std::vector<Route> routes;  // one per method, all of one style
  };
  std::vector<Pattern> patterns_;  // most literal segments first
};

}  // namespace tandem::server
