#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/formats/stored/stored_tensor.h"
#include "engine/model/families/weights.h"

namespace tandem::engine {

class ModelDir;

// The weight's tensor, found by its name, an alias or its place in a larger tensor; nullopt when
// there is none. Throws kDataLoss naming weight and tensor when the place is outside the larger
// tensor.
std::optional<StoredTensor> FindWeight(const ModelDir& dir, const WeightSpec& spec);

// The part of `whole` that the weight is. `source` is for messages; throws as FindWeight.
StoredTensor PartOf(const StoredTensor& whole, const StoredPart& part, const WeightSpec& spec,
                    const std::string& source);

// A tensor that holds several weights.
struct StackedTensor {
  std::vector<int64_t> shape;  // all its weights, and nothing else
  struct Member {
    size_t spec = 0;  // index into the list of weights
    StoredPart part;
  };
  std::vector<Member> members;
};
// All larger tensors that the weights name as places, by name. `published`: only the first place of
// each weight.
std::map<std::string, StackedTensor, std::less<>> StackedTensorsOf(
    const std::vector<WeightSpec>& specs, bool published);

}  // namespace tandem::engine
