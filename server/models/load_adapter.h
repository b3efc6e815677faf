#pragma once

#include <memory>
#include <string>

#include "engine/api/options.h"
#include "server/models/model_registry.h"

namespace tandem::server {

// An adapter of the command line: `NAME=DIR`.
struct AdapterSource {
  std::string name;
  std::string path;
  std::string owned_by = {};          // empty: the owner of its base
  std::optional<int64_t> owner = {};  // as ServedModel::owner
};
// Throws kInvalidArgument unless the text has that form.
AdapterSource ParseAdapterSource(const std::string& text);

// Loads an adapter as a model with its own name. It runs in the base's engine and keeps the base
// alive. `base` is a lease of the registry; `memory` holds the claim of engine::PlanAdapterMemory.
std::shared_ptr<const ServedModel> LoadServedAdapter(const AdapterSource& source,
                                                     std::shared_ptr<const ServedModel> base,
                                                     const engine::EngineOptions& options,
                                                     MemoryReservation memory);

}  // namespace tandem::server
