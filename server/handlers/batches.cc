#include "server/batches/batches.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/batches/batch_json.h"
#include "server/batches/batch_request.h"
#include "server/files/file_store.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/handlers/query_fields.h"
#include "server/wire/field_reader.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

Batches& RequireBatches(const HandlerContext& context) {
  Batches* batches = context.batches;
  if (batches == nullptr) throw NotReady(context);
  return *batches;
}

// Another key's batch is answered like one that does not exist.
Batch FindBatch(const HandlerContext& context, const Request& request) {
  const std::string& id = request.path_params.at("id");
  std::optional<Batch> batch = RequireBatches(context).Find(id);
  if (!batch || !MaySee(ViewerOf(context, request), batch->owner)) {
    throw Error(ErrorCode::kNotFound, "there is no batch '" + id.substr(0, 80) + "'")
        .WithParam("id")
        .WithReason("batch_not_found");
  }
  return std::move(*batch);
}

void SendBatch(const Batch& batch, const ResponseWriter& writer) {
  writer.Json(200, BatchJson(batch).dump());
}

// POST /v1/batches
void CreateBatch(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const NewBatch about = ParseNewBatch(request.body);
  Batches& batches = RequireBatches(context);
  const std::optional<StoredFile> input = RequireFiles(context).Find(about.input_file_id);
  if (!input || !MaySee(ViewerOf(context, request), input->owner)) {
    throw Error(ErrorCode::kNotFound,
                "there is no file '" + about.input_file_id.substr(0, 80) + "'")
        .WithParam("input_file_id")
        .WithReason("file_not_found");
  }
  if (input->purpose != "batch") {
    throw BadValue("input_file_id",
                   "input_file_id must name a file uploaded with purpose 'batch', "
                   "got one with purpose '" +
                       input->purpose + "'");
  }
  const Batch batch = batches.Create(about, OwnerOf(request));
  if (!about.ignored.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(about.ignored));
  }
  SendBatch(batch, writer);
}

// GET /v1/batches
void ListBatches(const HandlerContext& context, Request request, ResponseWriter writer) {
  const auto limit = static_cast<size_t>(QueryInt(request, "limit", 20, 1, 100));
  const std::string* after = request.FindQuery("after");
  const BatchPage page = RequireBatches(context).List(after == nullptr ? "" : *after, limit,
                                                      ViewerOf(context, request));
  Json body = {{"object", "list"}, {"data", Json::array()}};
  for (const Batch& batch : page.batches) body["data"].push_back(BatchJson(batch));
  body["first_id"] = page.batches.empty() ? Json() : Json(page.batches.front().id);
  body["last_id"] = page.batches.empty() ? Json() : Json(page.batches.back().id);
  body["has_more"] = page.has_more;
  writer.Json(200, body.dump());
}

// GET /v1/batches/{id}
void GetBatch(const HandlerContext& context, Request request, ResponseWriter writer) {
  SendBatch(FindBatch(context, request), writer);
}

// POST /v1/batches/{id}/cancel
void CancelBatch(const HandlerContext& context, Request request, ResponseWriter writer) {
  const std::string id = FindBatch(context, request).id;
  SendBatch(RequireBatches(context).Cancel(id), writer);
}

}  // namespace

std::span<const Endpoint> BatchEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"POST", "/v1/batches", CreateBatch},
      {"GET", "/v1/batches", ListBatches},
      {"GET", "/v1/batches/{id}", GetBatch},
      {"POST", "/v1/batches/{id}/cancel", CancelBatch},
  };
  return kEndpoints;
}

}  // namespace tandem::server
