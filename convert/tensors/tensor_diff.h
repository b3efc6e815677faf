#pragma once

#include <functional>
#include <string>
#include <vector>

#include "convert/tensors/model_source.h"

namespace tandem::convert {

// How a tensor of two sources differs; those that do not are not told.
struct TensorDifference {
  enum class Kind { kOnlyInFirst, kOnlyInSecond, kShape, kType, kValues };
  std::string name;
  Kind kind = Kind::kValues;
  std::string first, second;  // type and shape: "bf16 [4, 8]"; empty: has none
  // Of equal shapes: of the numbers. Where types differ these may be 0.
  double max_abs = 0;       // not a number where a difference is none
  double relative_rms = 0;  // of the differences, to that of the first's numbers
  int64_t elements = 0;     // that differ
};
struct TensorDiff {
  int64_t compared = 0;                       // tensors that both have
  std::vector<TensorDifference> differences;  // ascending by name
};

// Compares what two sources hold under each name, as numbers where their types differ. Memory is
// that of a part of one and a tensor of the other; `advance` is told the bytes of the first's, and
// may throw to give up. Throws kDataLoss, kIo, as reading does.
TensorDiff DiffTensors(const ModelSource& first, const ModelSource& second,
                       const std::function<void(int64_t bytes)>& advance = {});

const char* DifferenceName(TensorDifference::Kind kind);  // "only in the first", "values", …

}  // namespace tandem::convert
