#pragma once

#include <filesystem>

#include "engine/formats/stored/stored_tensor.h"

namespace tandem::tests {

// Writes `name`.gguf into `dir` and returns its path: a llama of two layers, width 256 and context
// 64. Its matrices are random blocks, since we can quantise real weights to some encodings only.
std::filesystem::path WriteRandomGguf(engine::Encoding encoding, const std::filesystem::path& dir);

}  // namespace tandem::tests
