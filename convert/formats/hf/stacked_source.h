#pragma once

#include <memory>

#include "convert/tensors/model_source.h"

namespace tandem::convert {

// The source with its weights in the larger tensors that published checkpoints of its family have
// (WeightSpec::parts), for example all experts of a layer; null when the family publishes each
// weight alone. `source` must outlive it. Throws kDataLoss naming tensor and weight when a member
// is missing or differs in shape or dtype.
std::unique_ptr<ModelSource> StackPublished(const ModelSource& source);

}  // namespace tandem::convert
