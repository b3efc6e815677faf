#pragma once

#include <memory>

#include "convert/tensors/model_source.h"

namespace tandem::convert {

// Joins the weights of `source` into the larger tensors of published checkpoints
// (WeightSpec::parts), for example all experts of a layer. Null when the family publishes each
// weight alone. `source` must outlive the result. Throws kDataLoss naming tensor and weight when a
// member is missing or differs in shape or dtype.
std::unique_ptr<ModelSource> StackPublished(const ModelSource& source);

}  // namespace tandem::convert
