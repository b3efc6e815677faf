#pragma once

#include <functional>
#include <string>
#include <vector>

#include "convert/tensors/model_source.h"

namespace tandem::convert {

// What a tensor holds, in a line.
struct TensorHash {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string sha256;  // of its bytes, hex
};

// Of all tensors, ascending by name. Reads every byte once; memory is that of the largest part.
// `advance` is told, after each tensor, how many bytes it had, and may throw to give up.
std::vector<TensorHash> HashTensors(const ModelSource& source,
                                    const std::function<void(int64_t bytes)>& advance = {});

// One hash of all of them: SHA-256 (hex) over a line each, `["name","bf16",[2,3],"…"]`. The same
// for the same tensors, however they are spread over files and stacked.
std::string HashOf(const std::vector<TensorHash>& tensors);

}  // namespace tandem::convert
