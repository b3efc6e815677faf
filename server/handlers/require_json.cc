#include <algorithm>

#include "engine/base/error.h"
#include "server/handlers/handlers.h"

namespace tandem::server {

void RequireJson(const Request& request) {
  const std::string* header = request.FindHeader("content-type");
  std::string type = header != nullptr ? header->substr(0, header->find(';')) : std::string();
  type.erase(std::remove(type.begin(), type.end(), ' '), type.end());
  std::transform(type.begin(), type.end(), type.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (type == "application/json") return;
  throw Error(ErrorCode::kInvalidArgument,
              "this route needs 'content-type: application/json', got " +
                  (type.empty() ? std::string("none") : "'" + type.substr(0, 60) + "'"))
      .WithReason("unsupported_media_type");
}

void RequireJsonFromPages(const Request& request) {
  if (request.FindHeader("origin") != nullptr) RequireJson(request);
}

}  // namespace tandem::server
