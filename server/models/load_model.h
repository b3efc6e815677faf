#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/api/loaded_model.h"
#include "engine/api/options.h"
#include "engine/formats/model_dir.h"
#include "server/models/model_registry.h"

namespace tandem::server {

// A model of the command line: `PATH`, `NAME=PATH`, `ORG/NAME` on the hub, or the name of an
// embedded model.
struct ModelArgument {
  std::string name;  // empty: the last part of the path, or the hub's or the embedded name
  std::string path;
  bool may_pull = false;     // may download from the hub; never for a path from a request
  bool is_embedded = false;  // `path` names an embedded model, even if a file has that name
};
ModelArgument ParseModelArgument(const std::string& text);

std::string NameOf(const ModelArgument& source);

struct OpenedModel {
  std::string id;
  engine::ModelDir files;
};
// An existing path wins over an embedded name and over the hub. Downloads a hub model that is not
// in the cache (engine/hub). Throws kNotFound with the places searched.
OpenedModel OpenModelArgument(const ModelArgument& source);

// Origin of a model in the model list.
struct ServedModelLabels {
  std::string owned_by = "local";
  std::optional<std::string> parent;
  std::optional<int64_t> owner = {};  // as ServedModel::owner
};

struct LoadSettings {
  ServedModelLabels labels = {};
  bool pinned = false;
  int64_t idle_unload_s = 0;
  // Memory reserved for the model; its KV cache gets the claim's `kv` bytes. An empty reservation
  // lets the engine size the cache (EngineOptions::memory_bytes).
  MemoryReservation memory = {};
  // Guesses the model's next tokens (engine/draft.h). Its memory is part of `memory`.
  std::optional<OpenedModel> draft = {};
  // Pack on a low-priority thread.
  bool in_background = false;
  // Called with the fraction packed so far; an exception from it aborts the load.
  std::function<void(double fraction)> progress = {};
};

// Memory needs of a model and its draft model, if any.
engine::MemoryPlan PlanServedModel(const OpenedModel& opened,
                                   const std::optional<OpenedModel>& draft,
                                   const engine::EngineOptions& options);

// Packs and starts a model. An empty `chat_template` means the model's own.
std::shared_ptr<const ServedModel> LoadServedModel(OpenedModel opened,
                                                   engine::EngineOptions options,
                                                   const std::string& chat_template,
                                                   LoadSettings settings = {});

// Applies a value of --dtype: f32, bf16, int8 or int4; "auto" changes nothing.
void SetDType(const std::string& dtype, engine::EngineOptions& options);

}  // namespace tandem::server
