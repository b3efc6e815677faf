#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/formats/stored/stored_tensor.h"
#include "engine/model/weights.h"
#include "engine/ops/matmul.h"

namespace tandem::engine {

// What becomes of weights that a file keeps in GGUF's blocks while nobody asked for another type.
struct Repacking {
  Encoding encoding = Encoding::kPlain;
  BlockFormat block = BlockFormat::kNone;
  // Every integer and scale stays what it is; otherwise groups are rounded anew, and what that lost
  // is measured and logged.
  bool exact = false;
};
// REQUIRES: not kPlain.
const Repacking& RepackingOf(Encoding encoding);

// Packs a matrix or a table that is stored in another way than families ask for into panels
// (`block` kNone) or blocks of ours. A few rows are decoded at a time. `exact`: the file's own
// integers are moved. The error is that of rounding to blocks, as PackBlockPanels measures it.
BlockError PackStored(OpsContext& ops, const StoredTensor& source, const WeightSpec& spec,
                      DType dtype, BlockFormat block, bool exact, std::byte* panels);

}  // namespace tandem::engine
