#pragma once

#include <functional>
#include <string>
#include <vector>

#include "convert/tensors/model_source.h"

namespace tandem::convert {

// One difference between two sources; equal tensors have no entry.
struct TensorDifference {
  enum class Kind { kOnlyInFirst, kOnlyInSecond, kShape, kType, kValues };
  std::string name;
  Kind kind = Kind::kValues;
  std::string first, second;  // dtype and shape: "bf16 [4, 8]"; empty: absent
  // Comparison of the numbers, if shapes are equal. All are 0 if only the dtype differs.
  double max_abs = 0;       // NaN if any difference is NaN
  double relative_rms = 0;  // RMS of the differences over RMS of the first's numbers
  int64_t elements = 0;     // number that differ
};
struct TensorDiff {
  int64_t compared = 0;                       // tensors that both have
  std::vector<TensorDifference> differences;  // ascending by name
};

// Compares the tensors of two sources by name, as numbers if their dtypes differ. Uses the memory
// of one part of one source and one tensor of the other. `advance` receives the bytes of the
// first's tensors and may throw to stop. Throws kDataLoss and kIo from reading.
TensorDiff DiffTensors(const ModelSource& first, const ModelSource& second,
                       const std::function<void(int64_t bytes)>& advance = {});

const char* DifferenceName(TensorDifference::Kind kind);  // "only in the first", "values", …

}  // namespace tandem::convert
