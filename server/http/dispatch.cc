#include "server/http/dispatch.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/ascii.h"
#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "engine/base/out_of_memory.h"
#include "server/http/response_writer.h"
#include "server/http/sse.h"
#include "server/http/standard_headers.h"

namespace tandem::server {
namespace {

// The frames, or the line, that end a begun stream with an error.
std::string ErrorEvents(const Response& response, const ApiStyle* style,
                        const std::string& request_id) {
  if (style == nullptr) return SseData(response.body) + SseData("[DONE]");
  Response styled = response;
  style->rewrite_error(styled, request_id);
  if (style->streams_lines) return styled.body + "\n";
  return SseNamed(style->error_event, styled.body);
}

// Runs posted tasks on the answer thread; their exceptions become answers as in RunHandler.
void RunChannelTasks(const ConnectionShared& shared, const Request& head,
                     ResponseChannel& channel) {
  std::vector<std::function<void()>> tasks;
  const std::optional<Error> error = Attempt([&] { channel.RunTasks(tasks); });
  if (!error) return;
  const bool is_answered = HasMemoryFor([&] {
    Response response = shared.policy.failure(*error, head);
    const std::string events = ErrorEvents(response, shared.router.StyleOf(head.path), head.id);
    channel.Abort(std::move(response), events);
  });
  if (!is_answered) channel.GiveUp();
}

}  // namespace

std::optional<Response> CheckHead(const ConnectionShared& shared, const Request& head,
                                  Router::Match& match) {
  const HttpPolicy& policy = shared.policy;
  if (const std::string* host = head.FindHeader("host");
      host != nullptr && !shared.allowed_hosts.Allows(*host)) {
    return policy.refusal(421, "host_not_allowed",
                          "the Host header '" + host->substr(0, 200) +
                              "' is not a name of this server; use its address, or start it with "
                              "--allowed-host NAME");
  }
  if (head.method == "OPTIONS" && head.path == "*") {
    return PreflightAnswer("GET, HEAD, POST, PUT, DELETE, OPTIONS");
  }
  match = shared.router.Find(head.method, head.path);
  if (match.allow.empty()) {
    return policy.refusal(404, "unknown_url",
                          "unknown request URL: " + head.method + " " + head.path.substr(0, 200));
  }
  if (head.method == "OPTIONS") return PreflightAnswer(match.allow);
  if (match.route == nullptr) {
    Response response = policy.refusal(
        405, "method_not_allowed",
        "method " + head.method.substr(0, 32) + " is not allowed here; allowed: " + match.allow);
    response.headers.emplace_back("allow", match.allow);
    return response;
  }
  const Access access = match.route->access;
  if (policy.gate) {
    if (std::optional<Response> refused = policy.gate(head, access)) return refused;
  }
  // Applies to every method, because browsers send a preflight only before some requests.
  if (IsFromForeignPage(shared.options, head)) {
    return policy.refusal(
        403, "origin_not_allowed",
        "pages of origin '" + head.FindHeader("origin")->substr(0, 200) +
            "' may not use this server; start it with --cors-origin to allow one origin");
  }
  if (const std::string* coding = head.FindHeader("content-encoding");
      coding != nullptr && !coding->empty() && LowerCase(*coding) != "identity") {
    Response response = policy.refusal(
        415, "unsupported_media_type",
        "send the body without Content-Encoding, got '" + coding->substr(0, 60) + "'");
    response.headers.emplace_back("accept-encoding", "identity");
    return response;
  }
  if (shared.draining && access != Access::kOpen && access != Access::kMetricsKey) {
    return policy.refusal(503, "shutting_down", "the server is shutting down");
  }
  return std::nullopt;
}

OpenedBody OpenBodyOf(const ConnectionShared& shared, const Route& route, const Request& head,
                      std::function<void()> has_room) {
  OpenedBody opened;
  const auto error = Attempt([&] { opened.sink = route.open_body(head, std::move(has_room)); });
  if (error) opened.refused = shared.policy.failure(*error, head);
  return opened;
}

std::shared_ptr<ResponseChannel> OpenChannel(const std::shared_ptr<ConnectionShared>& shared,
                                             const Request& head, std::function<void()> wake) {
  auto run_tasks = [weak = std::weak_ptr<ConnectionShared>(shared),
                    context = std::make_shared<const Request>(head)](
                       const std::shared_ptr<ResponseChannel>& channel) {
    if (const std::shared_ptr<ConnectionShared> alive = weak.lock()) {
      net::post(alive->answer_io, [shared = alive.get(), context, channel] {
        RunChannelTasks(*shared, *context, *channel);
      });
    }
  };
  return std::make_shared<ResponseChannel>(shared->options.max_output_bytes, std::move(wake),
                                           std::move(run_tasks));
}

// The only place where exceptions of handlers become answers.
void RunHandler(const std::shared_ptr<ConnectionShared>& shared, const Route& route,
                Request request, std::shared_ptr<ResponseChannel> channel) {
  const ResponseWriter writer(
      std::move(channel),
      [shared, style = route.style, id = request.id]() -> ResponseWriter::Abandoned {
        spdlog::error("request_abandoned request={}", id);
        Response response = shared->policy.refusal(500, "internal_error",
                                                   "internal error; the request id is " + id);
        std::string events = ErrorEvents(response, style, id);
        return {std::move(response), std::move(events)};
      });
  if (shared->policy.admit) {
    if (std::optional<Response> refused = shared->policy.admit(request, route, writer)) {
      return writer.Send(std::move(*refused));
    }
  }
  const auto run = [shared, writer, &route](Request to_handle) {
    Request context;  // data for an error report, once the handler owns the request
    context.id = to_handle.id;
    context.method = to_handle.method;
    context.path = to_handle.path;
    const auto error = Attempt([&] { route.handler(std::move(to_handle), writer); });
    if (!error) return;
    const bool is_answered =
        HasMemoryFor([&] { writer.Send(shared->policy.failure(*error, context)); });
    if (!is_answered) writer.GiveUp();
  };

  if (route.runs_on == RunsOn::kIoThread) return run(std::move(request));
  // std::function needs a copyable capture.
  const auto shared_request = std::make_shared<Request>(std::move(request));
  RequestPool& pool = route.runs_on == RunsOn::kWorker ? *shared->worker : *shared->pool;
  const uint64_t client = shared_request->client;
  const bool posted = pool.TryPost(client, [run, writer, shared_request] {
    if (!writer.is_over()) run(std::move(*shared_request));
  });
  if (!posted) {
    writer.Send(shared->policy.refusal(503, "server_overloaded",
                                       "too many requests are waiting; try again later"));
  }
}

void AbortForShutdown(const HttpPolicy& policy, const Request& head, const ApiStyle* style,
                      ResponseChannel& channel) {
  Response response = policy.refusal(503, "shutting_down", "the server is shutting down");
  const std::string events = ErrorEvents(response, style, head.id);
  channel.Abort(std::move(response), events);
}

}  // namespace tandem::server
