#include <optional>
#include <string>

#include "engine/base/ascii.h"
#include "server/console/assets.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/wire/version.h"

namespace tandem::server {
namespace {

// Nothing but the console's own files and the API runs or loads in its pages.
constexpr const char* kContentPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

// "127.0.0.1:41234", "::1:41234" or "::ffff:127.0.0.1:41234", as in Request::remote.
bool IsLoopbackPeer(std::string_view remote) {
  const size_t colon = remote.rfind(':');
  if (colon == std::string_view::npos) return false;
  std::string_view address = remote.substr(0, colon);
  if (address == "::1") return true;
  constexpr std::string_view kMapped = "::ffff:";
  if (address.starts_with(kMapped)) address.remove_prefix(kMapped.size());
  return address.starts_with("127.");
}

// Why this client gets no console; null: it gets one. The pages hold no data, but they make an open
// server easy to use for everyone who reaches it.
const char* WhyNoConsole(const HandlerContext& context, const Request& request) {
  if (!context.has_console) return "the console is off (--no-console)";
  if (context.requires_key && context.requires_key()) return nullptr;
  if (IsLoopbackPeer(request.remote)) return nullptr;
  return "a server without API keys shows its console only on its own machine: start it with "
         "--api-key, or create a key with 'tandem keys create'";
}

// Whether the list of a header such as Accept has the item, whatever its weight.
bool Lists(const Request& request, std::string_view header, std::string_view item) {
  const std::string* value = request.FindHeader(header);
  return value != nullptr && LowerCase(*value).find(item) != std::string::npos;
}

void SendAsset(const ConsoleAsset& asset, const Request& request, const ResponseWriter& writer) {
  Response response;
  response.content_type = asset.content_type;
  response.headers = {{"content-security-policy", kContentPolicy},
                      {"x-content-type-options", "nosniff"},
                      {"x-frame-options", "DENY"},
                      {"referrer-policy", "no-referrer"},
                      {"cross-origin-opener-policy", "same-origin"},
                      {"cross-origin-resource-policy", "same-origin"},
                      // Browsers keep the file and ask whether it has changed.
                      {"cache-control", "no-cache"},
                      {"etag", asset.etag},
                      {"vary", "Accept, Accept-Encoding, Origin"}};
  if (Lists(request, "if-none-match", LowerCase(asset.etag))) {
    response.status = 304;
  } else if (Lists(request, "accept-encoding", "gzip")) {
    response.headers.emplace_back("content-encoding", "gzip");
    response.body = asset.gzip;
  } else {
    response.body = asset.bytes;
  }
  writer.Send(std::move(response));
}

// Throws kNotFound.
void SendFile(const HandlerContext& context, const std::string& name, const Request& request,
              const ResponseWriter& writer) {
  std::optional<ConsoleAsset> read;
  const ConsoleAsset* asset = nullptr;
  if (context.console_dir.empty()) {
    asset = FindConsoleAsset(name);
  } else {
    read = ReadConsoleAsset(context.console_dir, name);
    if (read) asset = &*read;
  }
  if (asset == nullptr) {
    throw Error(ErrorCode::kNotFound, "the console has no file '" + name.substr(0, 200) + "'")
        .WithReason("unknown_url");
  }
  SendAsset(*asset, request, writer);
}

std::string FirstSteps(const HandlerContext& context, const char* why_no_console) {
  std::string model = "MODEL";
  if (const auto entries = context.models.List(); !entries.empty()) model = entries.front().name;
  std::string text = "Tandem " + VersionNumber() + ": one engine that trains and serves.\n\n";
  text += "Console: ";
  text += why_no_console == nullptr ? "open " + context.base_url + "/ in a browser"
                                    : "none here; " + std::string(why_no_console);
  text += "\nModels:  curl " + context.base_url + "/v1/models\n";
  text += "Chat:    curl -N " + context.base_url +
          "/v1/chat/completions -H 'content-type: application/json' \\\n"
          "           -d '{\"model\": \"" +
          model +
          "\", \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": "
          "\"a story about a dog\"}]}'\n";
  text += why_no_console == nullptr ? "API:     open " + context.base_url + "/docs in a browser\n"
                                    : "API:     curl " + context.base_url + "/openapi.json\n";
  return text;
}

// GET /: the console for browsers, first steps as text for all others.
void Welcome(const HandlerContext& context, Request request, ResponseWriter writer) {
  const char* why_no_console = WhyNoConsole(context, request);
  if (why_no_console == nullptr && Lists(request, "accept", "text/html")) {
    return SendFile(context, "index.html", request, writer);
  }
  writer.AddHeader("vary", "Accept, Origin");
  writer.Text(200, FirstSteps(context, why_no_console));
}

// GET /docs: openapi.json as a page.
void ShowApi(const HandlerContext& context, Request request, ResponseWriter writer) {
  if (const char* why = WhyNoConsole(context, request)) {
    throw Error(ErrorCode::kPermissionDenied, why).WithReason("no_console");
  }
  SendFile(context, "docs.html", request, writer);
}

// GET /console/{file+}
void GetConsoleFile(const HandlerContext& context, Request request, ResponseWriter writer) {
  if (const char* why = WhyNoConsole(context, request)) {
    throw Error(ErrorCode::kPermissionDenied, why).WithReason("no_console");
  }
  SendFile(context, request.path_params.at("file"), request, writer);
}

}  // namespace

std::span<const Endpoint> ConsoleEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"GET", "/", Welcome, Access::kOpen},
      {"GET", "/docs", ShowApi, Access::kOpen},
      {"GET", "/console/{file+}", GetConsoleFile, Access::kOpen},
  };
  return kEndpoints;
}

}  // namespace tandem::server
