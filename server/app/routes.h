#pragma once

#include <vector>

#include "server/handlers/handlers.h"
#include "server/http/router.h"

namespace tandem::server {

// Everything the world can ask. `context` must outlive the routes.
std::vector<Route> AllRoutes(const HandlerContext& context);

}  // namespace tandem::server
