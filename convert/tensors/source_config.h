#pragma once

#include <string>

#include "convert/tensors/model_source.h"
#include "engine/model/family.h"

namespace tandem::convert {

// What config.json of a source says, corrected by what the source stores.
struct SourceConfig {
  const engine::FamilySpec* family = nullptr;
  engine::ModelConfig config;
  // config.json ties the output head, but the source stores a different one; `config` is untied
  // then (engine/model/stored_head.h).
  bool has_own_head = false;
};

// Throws kDataLoss and kUnsupported naming the source and the field. Reads head and table of a
// source that stores both.
SourceConfig ConfigOf(const ModelSource& source);

// Throws kDataLoss for a tensor whose shape is not the one that the config asks for. Ignores
// tensors that are missing; writers name those that they need.
void CheckShapes(const ModelSource& source, const SourceConfig& config);

// The index of the weight's tensor, by its name or an alias; -1 when the source has none.
int64_t FindWeight(const ModelSource& source, const engine::WeightSpec& spec);

}  // namespace tandem::convert
