#include "engine/model/find_weight.h"

#include "engine/formats/model_dir.h"

namespace tandem::engine {

const StoredTensor* FindWeight(const ModelDir& dir, const WeightSpec& spec) {
  const StoredTensor* tensor = dir.FindStored(spec.name);
  for (size_t i = 0; tensor == nullptr && i < spec.aliases.size(); ++i) {
    tensor = dir.FindStored(spec.aliases[i]);
  }
  return tensor;
}

}  // namespace tandem::engine
