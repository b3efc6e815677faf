// The second listener (--health-port): the answers of /health, /ready and /metrics on threads of
// their own. A storm of connections on the main port delays its io thread; this one has none of
// them.

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/app/app.h"
#include "server/handlers/endpoints.h"
#include "server/respond/error_response.h"

namespace tandem::server {
namespace {

using namespace std::chrono_literals;

// Far more than the probes and scrapers of one server. With the connections that get a 503, they
// fit the descriptors that app.cc reserves.
constexpr size_t kMaxConnections = 192;
constexpr size_t kMaxWaitingScrapes = 8;
// No request of this port has a body. A small one is read and ignored, as on the main port.
constexpr size_t kMaxBodyBytes = 4 << 10;

// The host as it appears in a URL: an IPv6 address gets brackets.
std::string UrlHost(const std::string& host) {
  return host.find(':') != std::string::npos ? "[" + host + "]" : host;
}

// The main port's address, names, pages and TLS, with other limits. A connection ends soon: probes
// and scrapers open another, and a client must not hold all of them.
HttpOptions HealthOptions(const HttpOptions& main, uint16_t port) {
  HttpOptions options = main;
  options.port = port;
  options.port_flag = "--health-port";
  options.thread_names = "health";
  options.n_request_threads = 1;
  options.max_queued_requests = kMaxWaitingScrapes;
  options.max_connections = std::min(main.max_connections, kMaxConnections);
  options.max_body_bytes = std::min(main.max_body_bytes, kMaxBodyBytes);
  options.body_memory_bytes = kMaxConnections * kMaxBodyBytes;
  options.header_timeout = std::min(main.header_timeout, 5'000ms);
  options.handshake_timeout = std::min(main.handshake_timeout, 5'000ms);
  options.body_idle_timeout = std::min(main.body_idle_timeout, 5'000ms);
  options.keep_alive_timeout = std::min(main.keep_alive_timeout, 5'000ms);
  options.write_timeout = std::min(main.write_timeout, 10'000ms);
  options.linger_timeout = std::min(main.linger_timeout, 1'000ms);
  return options;
}

// The text of /metrics takes milliseconds, and its disk may hang. On the request thread it delays
// no /health.
std::vector<Route> HealthRoutes(const HandlerContext& context) {
  std::vector<Route> routes;
  for (Route& route : AllRoutes(context)) {
    const bool is_scrape = route.pattern == "/metrics";
    if (!is_scrape && route.pattern != "/health" && route.pattern != "/ready") continue;
    if (is_scrape) route.runs_on = RunsOn::kRequestPool;
    routes.push_back(std::move(route));
  }
  return routes;
}

}  // namespace

std::string App::UrlOfPort(uint16_t port) const {
  return (options_.tls_cert.empty() ? "http://" : "https://") + UrlHost(options_.http.host) + ":" +
         std::to_string(port);
}

std::optional<uint16_t> App::health_port() const {
  return health_ ? std::optional(health_->port()) : std::nullopt;
}

std::string App::health_url() const { return health_ ? UrlOfPort(health_->port()) : ""; }

void App::OpenHealthPort(const HttpOptions& main, uint16_t port) {
  if (port != 0 && port == http_->port()) {
    throw Error(ErrorCode::kInvalidArgument, "--health-port " + std::to_string(port) +
                                                 " is the main port: give it a port of its own, "
                                                 "or leave it out");
  }
  HttpPolicy policy = MakePolicy();
  policy.admit = nullptr;  // no route here has limits
  policy.refusal = [main_port = http_->port()](int status, std::string_view code,
                                               std::string_view message) {
    std::string text(message);
    if (status == 404) {
      text +=
          "; this port answers /health, /ready and /metrics only; send other requests to port " +
          std::to_string(main_port);
    }
    return ToResponse(MakeErrorReply(status, code, text));
  };
  // Requests are logged at debug level only, because a log that nobody reads may block.
  policy.on_end = [this](const RequestSummary& summary) {
    metrics_.CountHttp(summary.method, summary.route, summary.status);
    LogRequest(summary, spdlog::level::debug);
  };
  health_ = std::make_unique<HttpServer>(HealthOptions(main, port), HealthRoutes(context_),
                                         std::move(policy));
}

}  // namespace tandem::server
