#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/batches/batch.h"

namespace tandem::server {

// The batch object of the API.
nlohmann::ordered_json BatchJson(const Batch& batch);

// The whole batch as one JSON text, for the database. ParseBatch throws kDataLoss for a text that
// StoredBatch has not written.
std::string StoredBatch(const Batch& batch);
Batch ParseBatch(std::string_view stored);

}  // namespace tandem::server
