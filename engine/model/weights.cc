#include "engine/model/weights.h"

#include "engine/io/model_dir.h"

namespace tandem::engine {

const ConstTensorView* FindWeight(const ModelDir& dir, const WeightSpec& spec) {
  const ConstTensorView* tensor = dir.FindTensor(spec.name);
  for (size_t i = 0; tensor == nullptr && i < spec.aliases.size(); ++i) {
    tensor = dir.FindTensor(spec.aliases[i]);
  }
  return tensor;
}

}  // namespace tandem::engine
