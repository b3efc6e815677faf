// The batches of the app: their rights and their place among the routes.

#include <algorithm>
#include <filesystem>
#include <utility>

#include "server/app/app.h"
#include "server/batches/batch_request.h"
#include "server/handlers/endpoints.h"

namespace tandem::server {
namespace {

constexpr int64_t kMostInFlight = 16;

}  // namespace

// Runs last: the first line of a resumed batch needs the models and aliases.
void App::StartBatches() {
  if (!files_) return;
  std::vector<Route> routes = AllRoutes(context_);
  std::erase_if(routes, [](const Route& route) { return !IsBatchEndpoint(route.pattern); });
  batch_router_ = std::make_unique<Router>(std::move(routes));
  Batches::Options options;
  options.data_dir = std::filesystem::absolute(options_.data_dir);
  // Without a flag, half of the places stay free for interactive requests.
  options.max_in_flight = options_.batch_concurrency > 0
                              ? options_.batch_concurrency
                              : std::clamp(options_.engine.max_seqs / 2, int64_t{1}, kMostInFlight);
  options.max_line_bytes = static_cast<int64_t>(options_.http.max_body_bytes);
  options.authorize = [this](const Batch& batch, Request& request) {
    return AuthorizeBatch(batch, request);
  };
  options.on_line = [this](const Request& request) { key_usage_.CountRequest(request.client); };
  options.failure = [policy = MakePolicy().failure, path = std::string("/v1/batches")](
                        const Error& error, const std::string& request_id) {
    Request request;  // for the log
    request.id = request_id;
    request.method = "POST";
    request.path = path;
    return policy(error, request);
  };
  batches_ = std::make_unique<Batches>(std::move(options), *batch_store_, *files_, *batch_router_,
                                       detached_);
  context_.batches = batches_.get();
}

// As ApiKeys::Check of a route with Access::kApiKey, for a key that is known by its number.
bool App::AuthorizeBatch(const Batch& batch, Request& request) const {
  if (!batch.owner) return true;  // made while no key was needed
  request.client = static_cast<uint64_t>(*batch.owner);
  if (request.client == kAdminClient) {
    request.sees_all_records = true;
    return options_.admin_key.has_value();
  }
  const Scopes scopes = keys_.ScopesOfClient(request.client);
  request.sees_all_records = scopes.Has(Scope::kAdmin);
  return scopes.Has(Scope::kInfer) || !keys_.requires_key();
}

}  // namespace tandem::server
