#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "engine/io/safetensors.h"

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

}  // namespace tandem::engine
