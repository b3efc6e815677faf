#include <nlohmann/json.hpp>

#include "engine/constrain/grammar.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/wire/error_body.h"
#include "server/wire/version.h"

namespace tandem::server {
namespace {

// An engine loop without a heartbeat for this long is stuck, not busy: it beats between steps.
constexpr auto kStuckAfter = std::chrono::seconds(10);

void SendUnavailable(const ResponseWriter& writer, const char* status) {
  Response response;
  response.status = 503;
  response.body = nlohmann::json{{"status", status}}.dump();
  writer.Send(std::move(response));
}

}  // namespace

bool IsStuck(const HandlerContext& context) {
  for (const auto& entry : context.models.List()) {
    if (context.now() - entry.model->engine->stats().heartbeat > kStuckAfter) return true;
  }
  return false;
}

Error NotReady(const HandlerContext& context) {
  if (context.is_draining) {
    return Error(ErrorCode::kUnavailable, "the server is stopping").WithReason("shutting_down");
  }
  if (context.is_loading) {
    return Error(ErrorCode::kUnavailable, "the server is still starting")
        .WithReason("model_loading");
  }
  return Error(ErrorCode::kUnavailable,
               "this server keeps no files and no jobs: start it with a data directory "
               "(--data-dir) that no other server uses");
}

const char* WhyNotReady(const HandlerContext& context) {
  if (context.is_draining) return "draining";
  if (context.is_loading) return "loading";
  if (context.models.empty()) return "no_model";
  return context.models.all_failed() ? "damaged" : nullptr;
}

namespace {

void Health(const HandlerContext& context, Request, ResponseWriter writer) {
  if (IsStuck(context)) return SendUnavailable(writer, "stuck");
  writer.Json(200, R"({"status":"ok"})");
}

void Ready(const HandlerContext& context, Request, ResponseWriter writer) {
  if (const char* why = WhyNotReady(context)) return SendUnavailable(writer, why);
  writer.Json(200, R"({"status":"ready"})");
}

void Version(const HandlerContext&, Request, ResponseWriter writer) {
  nlohmann::ordered_json body;
  body["version"] = VersionNumber();
  body["commit"] = VersionCommit();
  body["build"] = VersionBuild();
  body["features"] = {"chat",         "completions", "streaming", "logprobs",
                      "prefix_cache", "jobs",        "metrics",   "rate_limits"};
  if (!engine::LlguidanceVersion().empty()) body["features"].push_back("structured_output");
  // Null: this build answers 400 to what constrains an answer.
  body["llguidance"] = nullptr;
  if (const auto version = engine::LlguidanceVersion(); !version.empty()) {
    body["llguidance"] = version;
  }
  writer.Json(200, body.dump());
}

}  // namespace

std::span<const Endpoint> StatusEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"GET", "/health", Health, Access::kOpen, RunsOn::kIoThread},
      {"GET", "/ready", Ready, Access::kOpen, RunsOn::kIoThread},
      {"GET", "/version", Version, Access::kOpen, RunsOn::kIoThread},
  };
  return kEndpoints;
}

}  // namespace tandem::server
