#pragma once

#include <memory>
#include <string>

#include "engine/api/options.h"
#include "server/models/model_registry.h"

namespace tandem::server {

// An adapter as the command line names it: `NAME=DIR`.
struct AdapterSource {
  std::string name;
  std::string path;
  std::string owned_by = {};  // empty: as its base
};
// Throws kInvalidArgument when the text is not of that form.
AdapterSource ParseAdapterSource(const std::string& text);

// The base with an adapter, as a model of its own name that runs in the base's engine and keeps it
// from ending. `base` is the registry's lease, `memory` what engine::PlanAdapter has asked for.
std::shared_ptr<const ServedModel> LoadServedAdapter(const AdapterSource& source,
                                                     std::shared_ptr<const ServedModel> base,
                                                     const engine::EngineOptions& options,
                                                     MemoryReservation memory);

}  // namespace tandem::server
