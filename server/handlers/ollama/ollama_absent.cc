#include <string>
#include <utility>

#include "server/handlers/endpoints.h"
#include "server/respond/error_response.h"

namespace tandem::server {
namespace {

void RefuseOllamaRoute(const ResponseWriter& writer, const std::string& what) {
  writer.Send(ToResponse(MakeErrorReply(501, "not_implemented", what)));
}

// POST /api/create
void OllamaCreate(const HandlerContext&, Request, ResponseWriter writer) {
  RefuseOllamaRoute(writer,
                    "this server reads no Modelfiles: load a model with POST /admin/models/load or "
                    "/api/pull, convert or quantise one with POST /admin/convert, and send the "
                    "system prompt with each request");
}

// POST /api/copy
void OllamaCopy(const HandlerContext&, Request, ResponseWriter writer) {
  RefuseOllamaRoute(writer,
                    "this server copies no models: give one a second name with POST "
                    "/admin/aliases");
}

// DELETE /api/delete
void OllamaDelete(const HandlerContext&, Request, ResponseWriter writer) {
  RefuseOllamaRoute(writer,
                    "this server deletes only models that its jobs have made, with DELETE "
                    "/v1/models/NAME; POST /admin/models/unload frees the memory of any other");
}

// POST /api/push
void OllamaPush(const HandlerContext&, Request, ResponseWriter writer) {
  RefuseOllamaRoute(writer,
                    "this server uploads no models: the finished model of a job is a directory "
                    "for the hub's own tools");
}

// POST /api/blobs/{digest}
void OllamaBlobs(const HandlerContext&, Request, ResponseWriter writer) {
  RefuseOllamaRoute(writer,
                    "this server takes no blobs: put the model's files below --model-root and load "
                    "them with POST /admin/models/load");
}

}  // namespace

std::span<const Endpoint> OllamaAbsentEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {.method = "POST", .pattern = "/api/create", .handle = OllamaCreate, .api = ApiKind::kOllama},
      {.method = "POST", .pattern = "/api/copy", .handle = OllamaCopy, .api = ApiKind::kOllama},
      {.method = "DELETE",
       .pattern = "/api/delete",
       .handle = OllamaDelete,
       .api = ApiKind::kOllama},
      {.method = "POST", .pattern = "/api/push", .handle = OllamaPush, .api = ApiKind::kOllama},
      {.method = "POST",
       .pattern = "/api/blobs/{digest}",
       .handle = OllamaBlobs,
       .api = ApiKind::kOllama},
  };
  return kEndpoints;
}

}  // namespace tandem::server
