#include "server/batches/batch_request.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "server/wire/field_reader.h"
#include "server/wire/metadata.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kEndpoints = {"/v1/chat/completions", "/v1/completions",
                                                        "/v1/embeddings", "/v1/responses"};
constexpr int64_t kMinExpiryS = 3600;
constexpr int64_t kMaxExpiryS = 30 * 24 * 3600;

std::string EndpointList() {
  std::string list;
  for (const std::string_view endpoint : kEndpoints) {
    list += (list.empty() ? "" : ", ") + std::string(endpoint);
  }
  return list;
}

std::optional<int64_t> ParseExpiry(FieldReader& reader) {
  const Json* object = reader.Object("output_expires_after");
  if (object == nullptr) return std::nullopt;
  FieldReader fields(*object, "output_expires_after");
  const std::string anchor = fields.RequiredString("anchor");
  if (anchor != "created_at") {
    throw BadValue(
        "output_expires_after.anchor",
        "output_expires_after.anchor must be 'created_at', got " + ShortForm(Json(anchor)));
  }
  const std::optional<int64_t> seconds = fields.Int("seconds", kMinExpiryS, kMaxExpiryS);
  if (!seconds) throw MissingField("output_expires_after.seconds");
  RefuseUnknownFields(fields, "anchor and seconds");
  return seconds;
}

}  // namespace

bool IsBatchEndpoint(std::string_view path) {
  return std::find(kEndpoints.begin(), kEndpoints.end(), path) != kEndpoints.end();
}

NewBatch ParseNewBatch(std::string_view body) {
  const Json object = ParseJsonObject(body);
  FieldReader reader(object);
  NewBatch batch;
  batch.input_file_id = reader.RequiredString("input_file_id");
  batch.endpoint = reader.RequiredString("endpoint");
  if (!IsBatchEndpoint(batch.endpoint)) {
    throw BadValue("endpoint", "endpoint must be one of " + EndpointList() + ", got " +
                                   ShortForm(Json(batch.endpoint)));
  }
  const std::string window = reader.RequiredString("completion_window");
  if (window != "24h") {
    throw BadValue("completion_window",
                   "completion_window must be '24h', got " + ShortForm(Json(window)));
  }
  batch.metadata = ParseMetadata(reader);
  batch.output_expires_after_s = ParseExpiry(reader);
  batch.ignored = reader.unknown();
  return batch;
}

}  // namespace tandem::server
