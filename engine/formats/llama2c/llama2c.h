#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "engine/formats/stored/single_file_model.h"
#include "engine/io/mapped_file.h"

namespace tandem::engine {

// Whether the bytes are a model of llama2.c: its magic, or without one a header whose sizes give
// exactly this file.
bool LooksLikeLlama2c(std::span<const std::byte> bytes);
// Reads versions 0 (f32 without a magic) and 1. `vocabulary` holds the bytes of tokenizer.bin, or
// is null.
SingleFileModel ReadLlama2cModel(std::span<const std::byte> bytes, const std::string& name,
                                 std::shared_ptr<const MappedFile> vocabulary);
// Path of the vocabulary beside a llama2.c model: tok<tokens>.bin or tokenizer.bin; empty when
// neither exists.
std::filesystem::path FindLlama2cVocabulary(const std::filesystem::path& model,
                                            std::span<const std::byte> bytes);

}  // namespace tandem::engine
