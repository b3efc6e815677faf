#include "server/handlers/handlers.h"

namespace tandem::server {

// Client numbers are stored as signed numbers, because SQLite has no others.
std::optional<int64_t> OwnerOf(const Request& request) {
  if (request.client == 0) return std::nullopt;
  return static_cast<int64_t>(request.client);
}

Viewer ViewerOf(const HandlerContext& context, const Request& request) {
  if (!context.isolate_keys || request.sees_all_records) return std::nullopt;
  return static_cast<int64_t>(request.client);
}

ResponseStore& RequireResponses(const HandlerContext& context) {
  ResponseStore* store = context.responses;
  if (store == nullptr) throw NotReady(context);
  return *store;
}

Viewer ResponseViewerOf(const Request& request) {
  if (request.sees_all_records) return std::nullopt;
  return static_cast<int64_t>(request.client);
}

}  // namespace tandem::server
