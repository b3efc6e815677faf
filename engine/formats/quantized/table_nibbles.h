#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/formats/stored/stored_tensor.h"

namespace tandem::engine {

// A weight of bitsandbytes in four bits (NF4 or FP4).
struct NibbleTensor {
  std::vector<int64_t> shape;
  std::shared_ptr<const EncodedRows> rows;
};

// `codes` is the packed tensor `name`, `parts` the tensors whose names continue it: absmax,
// quant_map, nested_absmax, nested_quant_map, and quant_state.bitsandbytes__nf4 (JSON). Decodes the
// scales. Throws kDataLoss and kUnsupported naming `model`, tensor and field.
NibbleTensor ReadNibbleTensor(const std::string& model, const std::string& name,
                              const ConstTensorView& codes,
                              const std::map<std::string, ConstTensorView, std::less<>>& parts);

}  // namespace tandem::engine
