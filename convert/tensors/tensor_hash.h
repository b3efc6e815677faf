#pragma once

#include <functional>
#include <string>
#include <vector>

#include "convert/tensors/model_source.h"

namespace tandem::convert {

// Hash of one tensor.
struct TensorHash {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string sha256;  // of its bytes, hex
};

// Hashes all tensors, ascending by name. Reads every byte once, with the memory of the largest
// part. `advance` receives each tensor's bytes and may throw to stop.
std::vector<TensorHash> HashTensors(const ModelSource& source,
                                    const std::function<void(int64_t bytes)>& advance = {});

// Returns one hash of them all: SHA-256 (hex) over a line each, `["name","bf16",[2,3],"…"]`. It
// does not depend on files, shards or stacking.
std::string HashOf(const std::vector<TensorHash>& tensors);

}  // namespace tandem::convert
