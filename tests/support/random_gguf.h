#pragma once

#include <filesystem>

#include "engine/formats/stored/stored_tensor.h"

namespace tandem::tests {

// Writes `name`.gguf into `dir`: a llama of two layers, width 256 and context 64 whose matrices are
// blocks of random bytes, which only some encodings can have of real weights without their own
// program. Returns the file.
std::filesystem::path WriteRandomGguf(engine::Encoding encoding, const std::filesystem::path& dir);

}  // namespace tandem::tests
