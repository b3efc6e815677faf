#pragma once

#include <string>

#include "engine/api/pooling.h"

namespace tandem::engine {

class ModelDir;

// The pooling that a model's own files ask for.
struct PoolingConfig {
  Pooling pooling = Pooling::kLast;  // kLast if the files name none
  std::string error;                 // why the model's own pooling is not supported; empty if it is
};

// Reads 1_Pooling/config.json of sentence-transformers, or a GGUF file's `pooling_type`. Throws
// kDataLoss naming file and field.
PoolingConfig ReadPoolingConfig(const ModelDir& dir);

}  // namespace tandem::engine
