#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "engine/formats/stored/single_file_model.h"
#include "engine/io/mapped_file.h"

namespace tandem::engine {

// Whether the bytes are a llama2.c model: they have its magic, or a header whose sizes add up to
// exactly this file.
bool LooksLikeLlama2c(std::span<const std::byte> bytes);
// Reads versions 0 (f32 without a magic) and 1. `vocabulary` maps tokenizer.bin, or is null.
SingleFileModel ReadLlama2cModel(std::span<const std::byte> bytes, const std::string& name,
                                 std::shared_ptr<const MappedFile> vocabulary);
// Path of the vocabulary in the model's directory: tok<tokens>.bin or tokenizer.bin. Empty when
// neither exists.
std::filesystem::path FindLlama2cVocabulary(const std::filesystem::path& model,
                                            std::span<const std::byte> bytes);

}  // namespace tandem::engine
