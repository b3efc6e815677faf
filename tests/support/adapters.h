#pragma once

#include <cstdint>
#include <filesystem>

namespace tandem::tests {

// Writes a PEFT directory: a random adapter for every linear layer of the model in `model_dir`. Its
// values are large enough to change the model's output.
void WriteRandomAdapter(const std::filesystem::path& model_dir, int64_t rank, uint32_t seed,
                        const std::filesystem::path& dir);

}  // namespace tandem::tests
