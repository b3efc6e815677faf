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

// WriteSafetensors of tensors that are not in memory together: what each is, the views say, whose
// data is not read; the bytes are asked for one tensor after the other, in the order of the file,
// and must stay until the next one is asked for. The file is that of WriteSafetensors, byte for
// byte.
using TensorBytesFunction = std::function<std::span<const std::byte>(const NamedTensor& tensor)>;
std::string WriteSafetensors(const std::filesystem::path& path,
                             std::span<const NamedTensor> tensors,
                             const std::map<std::string, std::string>& metadata,
                             const TensorBytesFunction& bytes_of);

// The same file before any of it is written, for those who write it in another order.
struct SafetensorsLayout {
  struct Place {
    size_t tensor;   // of those that were given
    int64_t offset;  // bytes, from the beginning of the file
  };
  std::string header;         // with which the file begins
  std::vector<Place> places;  // one after another, without holes
  int64_t file_bytes = 0;
};
// Throws kInvalidArgument for names that are no UTF-8, reserved or given twice.
SafetensorsLayout LayOutSafetensors(std::span<const NamedTensor> tensors,
                                    const std::map<std::string, std::string>& metadata);

}  // namespace tandem::engine
