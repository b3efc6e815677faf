#include <string>

#include "engine/base/embed.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"

// Edited by hand.
TANDEM_EMBED(tandem_openapi, TANDEM_OPENAPI_FILE);

namespace tandem::server {

std::string_view OpenApiText() {
  return {reinterpret_cast<const char*>(tandem_openapi_begin),
          static_cast<size_t>(tandem_openapi_end - tandem_openapi_begin)};
}

namespace {

// GET /openapi.json
void OpenApi(const HandlerContext&, Request, ResponseWriter writer) {
  writer.Json(200, std::string(OpenApiText()));
}

}  // namespace

std::span<const Endpoint> OpenApiEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"GET", "/openapi.json", OpenApi, Access::kOpen},
  };
  return kEndpoints;
}

}  // namespace tandem::server
