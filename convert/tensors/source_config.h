#pragma once

#include <string>

#include "convert/tensors/model_source.h"
#include "engine/model/families/family.h"

namespace tandem::convert {

// config.json of a source, corrected by its stored tensors.
struct SourceConfig {
  const engine::FamilySpec* family = nullptr;
  engine::ModelConfig config;
  // config.json ties the output head, but the source stores a different head; `config` is then
  // untied (engine/model/stored_head.h).
  bool has_own_head = false;
};

// Throws kDataLoss and kUnsupported naming the source and the field. Reads the head and the
// embedding table of a source that stores both.
SourceConfig ConfigOf(const ModelSource& source);

// Throws kDataLoss for a tensor whose shape differs from the config's. Ignores missing tensors;
// writers report those they need.
void CheckShapes(const ModelSource& source, const SourceConfig& config);

// Returns the index of a weight's tensor, by name or alias; -1 when the source lacks it.
int64_t FindWeight(const ModelSource& source, const engine::WeightSpec& spec);

}  // namespace tandem::convert
