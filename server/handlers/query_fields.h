#pragma once

#include <cstdint>

#include "server/http/request.h"

namespace tandem::server {

// Parameters of a query string. Faults throw kInvalidArgument with the parameter's name.
int64_t QueryInt(const Request& request, const char* name, int64_t fallback, int64_t min,
                 int64_t max);

enum class Order { kNewestFirst, kOldestFirst };
// `order`: "asc" or "desc".
Order QueryOrder(const Request& request, Order fallback);

}  // namespace tandem::server
