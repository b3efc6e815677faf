#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tandem::tests {

// Writes a PEFT directory: a random adapter for the linear layers of the model in `model_dir` that
// `module_path` names (lora.module_path; empty: all). Its values are large enough to change the
// model's output.
void WriteRandomAdapter(const std::filesystem::path& model_dir, int64_t rank, uint32_t seed,
                        const std::filesystem::path& dir, const std::string& module_path = {});

}  // namespace tandem::tests
