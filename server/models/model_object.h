#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/models/model_registry.h"

namespace tandem::server {

// ServedModel::provenance as JSON; null if it is empty.
nlohmann::ordered_json ProvenanceJson(const ServedModel& model);

}  // namespace tandem::server
