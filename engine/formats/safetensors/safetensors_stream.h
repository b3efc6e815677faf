#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/formats/safetensors/safetensors.h"

namespace tandem::engine {

// WriteSafetensors for tensors that are not in memory at the same time. Views describe the tensors;
// their data is not read. `bytes_of` is called for one tensor after another in file order; its
// bytes must stay valid until the next call. The file equals that of WriteSafetensors byte for
// byte.
using TensorBytesFunction = std::function<std::span<const std::byte>(const NamedTensor& tensor)>;
std::string WriteSafetensors(const std::filesystem::path& path,
                             std::span<const NamedTensor> tensors,
                             const std::map<std::string, std::string>& metadata,
                             const TensorBytesFunction& bytes_of);

// Header and offsets of the same file, for callers that write it in another order.
struct SafetensorsLayout {
  struct Place {
    size_t tensor;   // index in the caller's list
    int64_t offset;  // bytes from the start of the file
  };
  std::string header;         // the first bytes of the file
  std::vector<Place> places;  // in file order, without holes
  int64_t file_bytes = 0;
};
// Throws kInvalidArgument for names that are not UTF-8, reserved or given twice.
SafetensorsLayout LayOutSafetensors(std::span<const NamedTensor> tensors,
                                    const std::map<std::string, std::string>& metadata);

}  // namespace tandem::engine
