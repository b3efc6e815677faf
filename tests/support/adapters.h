#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "training/lora/lora_options.h"

namespace tandem::tests {

// Writes a PEFT directory: a random adapter for the linear layers of the model in `model_dir` that
// `module_path` names (lora.module_path; empty: all). Its values are large enough to change the
// model's output.
void WriteRandomAdapter(const std::filesystem::path& model_dir, int64_t rank, uint32_t seed,
                        const std::filesystem::path& dir, const std::string& module_path = {});
// Likewise an adapter of these options, whose alpha is twice the rank: with DoRA, adapted
// embeddings or whole copies, all of random values.
void WriteRandomAdapter(const std::filesystem::path& model_dir, training::LoraOptions options,
                        uint32_t seed, const std::filesystem::path& dir);

}  // namespace tandem::tests
