#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/formats/stored/stored_tensor.h"
#include "engine/model/families/weights.h"
#include "engine/ops/matmul.h"

namespace tandem::engine {

// How a weight in GGUF blocks is stored when no dtype is requested.
struct Repacking {
  Encoding encoding = Encoding::kPlain;
  BlockFormat block = BlockFormat::kNone;
  // Every integer and scale keeps its value. If false, groups are rounded again and the error is
  // measured and logged.
  bool exact = false;
};
// REQUIRES: not kPlain.
Repacking RepackingOf(const StoredTensor& tensor);

// Packs a matrix or table with a foreign encoding or layout into panels (`block` kNone) or our
// blocks; decodes a few rows at a time. `exact`: moves the file's own integers. Returns the error
// of rounding to blocks, measured as PackBlockPanels does.
BlockError PackStored(OpsContext& ops, const StoredTensor& source, const WeightSpec& spec,
                      DType dtype, BlockFormat block, bool exact, std::byte* panels);

}  // namespace tandem::engine
