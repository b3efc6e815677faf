#pragma once

#include <vector>

#include "server/handlers/handlers.h"
#include "server/http/router.h"

namespace tandem::server {

// Every route of the API. `context` must outlive the result.
std::vector<Route> AllRoutes(const HandlerContext& context);

}  // namespace tandem::server
