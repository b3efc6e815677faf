#pragma once

#include <string_view>

#include "server/batches/batch.h"

namespace tandem::server {

// Whether lines of a batch may go to this path, if the server has it.
bool IsBatchEndpoint(std::string_view path);

// Checks the body of POST /v1/batches. Throws kInvalidArgument with the field as `param`.
NewBatch ParseNewBatch(std::string_view body);

}  // namespace tandem::server
