#pragma once

#include <cstdint>
#include <filesystem>

namespace tandem::tests {

// Writes a PEFT directory: an adapter with random values for every linear layer of the model in
// `model_dir`, large enough to change what the model says.
void WriteRandomAdapter(const std::filesystem::path& model_dir, int64_t rank, uint32_t seed,
                        const std::filesystem::path& dir);

}  // namespace tandem::tests
