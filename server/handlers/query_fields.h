#pragma once

#include <cstdint>

#include "server/http/request.h"

namespace tandem::server {

// These read one parameter of the query string and throw kInvalidArgument, with its name, on a bad
// value. A missing parameter yields `fallback`.
int64_t QueryInt(const Request& request, const char* name, int64_t fallback, int64_t min,
                 int64_t max);

enum class Order { kNewestFirst, kOldestFirst };
// `order`: "asc" or "desc".
Order QueryOrder(const Request& request, Order fallback);

}  // namespace tandem::server
