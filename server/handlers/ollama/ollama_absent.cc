#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "server/handlers/endpoints.h"
#include "server/respond/error_response.h"

namespace tandem::server {
namespace {

// A route of Ollama's that is always 501.
struct AbsentRoute {
  const char* method;
  const char* pattern;
  const char* reason;  // with the alternative
};

constexpr std::array kAbsentRoutes = {
    AbsentRoute{"POST", "/api/create",
                "this server reads no Modelfiles: load a model with POST /admin/models/load or "
                "/api/pull, convert or quantise one with POST /admin/convert, and send the system "
                "prompt with each request"},
    AbsentRoute{"POST", "/api/copy",
                "this server copies no models: give one a second name with POST /admin/aliases"},
    AbsentRoute{"DELETE", "/api/delete",
                "this server deletes only models that its jobs have made, with DELETE "
                "/v1/models/NAME; POST /admin/models/unload frees the memory of any other"},
    AbsentRoute{"POST", "/api/push",
                "this server uploads no models: the finished model of a job is a directory for the "
                "hub's own tools"},
    AbsentRoute{"POST", "/api/blobs/{digest}",
                "this server takes no blobs: put the model's files below --model-root and load "
                "them with POST /admin/models/load"},
};

template <size_t kRoute>
void RefuseAbsent(const HandlerContext&, Request, ResponseWriter writer) {
  writer.Send(ToResponse(MakeErrorReply(501, "not_implemented", kAbsentRoutes[kRoute].reason)));
}

template <size_t... kRoutes>
constexpr auto EndpointsOf(std::index_sequence<kRoutes...>) {
  return std::array{Endpoint{.method = kAbsentRoutes[kRoutes].method,
                             .pattern = kAbsentRoutes[kRoutes].pattern,
                             .handle = RefuseAbsent<kRoutes>,
                             .api = ApiKind::kOllama}...};
}

}  // namespace

std::span<const Endpoint> OllamaAbsentEndpoints() {
  static constexpr auto kEndpoints = EndpointsOf(std::make_index_sequence<kAbsentRoutes.size()>());
  return kEndpoints;
}

}  // namespace tandem::server
