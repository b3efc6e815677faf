#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/api/options.h"
#include "engine/formats/model_dir.h"
#include "server/models/model_registry.h"

namespace tandem::server {

// A model as the command line names it: `PATH`, `NAME=PATH`, `ORG/NAME` of the hub, or the name of
// an embedded model.
struct ModelSource {
  std::string name;  // empty: the last part of the path, or the hub's or the embedded name
  std::string path;
  bool may_pull = false;  // from the hub: what the command line names, never what a request names
  bool is_embedded = false;  // `path` is the name of an embedded model, whatever the disk has
};
ModelSource ParseModelSource(const std::string& text);

std::string NameOf(const ModelSource& source);

struct OpenedModel {
  std::string id;
  engine::ModelDir files;
};
// An existing path wins over an embedded name and over the hub, from which the model is pulled if
// need be (server/hub). Throws kNotFound saying what was looked for.
OpenedModel OpenModelSource(const ModelSource& source);

// How the model list describes where a model comes from.
struct ServedModelLabels {
  std::string owned_by = "local";
  std::optional<std::string> parent;
};

// What else there is to say about a model that is being loaded.
struct LoadSettings {
  ServedModelLabels labels = {};
  bool pinned = false;
  int64_t idle_unload_s = 0;
  // What the model may take: its keys and values get as much as is written there. Of nothing: the
  // engine finds its own measure (EngineOptions::memory_bytes).
  MemoryReservation memory = {};
  // Pack on a thread that gives way to whoever serves.
  bool in_background = false;
  // Called with what part is packed; what it throws ends the loading.
  std::function<void(double fraction)> progress = {};
};

// Packs and starts a model. `chat_template` is a template's text, or empty for the model's
// own.
std::shared_ptr<const ServedModel> LoadServedModel(OpenedModel opened,
                                                   engine::EngineOptions options,
                                                   const std::string& chat_template,
                                                   LoadSettings settings = {});

// What --dtype says: f32, bf16, int8 or int4; "auto" changes nothing.
void SetDType(const std::string& dtype, engine::EngineOptions& options);

}  // namespace tandem::server
