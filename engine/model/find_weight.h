#pragma once

#include "engine/model/families/weights.h"

namespace tandem::engine {

class ModelDir;
struct StoredTensor;

// The weight's tensor, found by its name or an alias; null when there is none.
const StoredTensor* FindWeight(const ModelDir& dir, const WeightSpec& spec);

}  // namespace tandem::engine
