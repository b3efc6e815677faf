#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/io/gguf.h"
#include "engine/io/mapped_file.h"
#include "engine/io/stored_tensor.h"

namespace tandem::engine {

// A model that another program wrote into one file, told as the files of a Hugging Face directory:
// tensors by the names that families ask for, config.json and the files of a tokenizer as texts
// made from what the file says. The bytes must outlive it. Any thread.
struct ForeignModel {
  std::map<std::string, StoredTensor, std::less<>> tensors;
  // The text of a file of the directory; nullopt where there is none. Throws kDataLoss,
  // kUnsupported naming the file and what in it cannot be told.
  std::function<std::optional<std::string>(std::string_view file_name)> read_text;
};

// A GGUF file with all of its parts. Families: llama (also Mistral's), qwen2, qwen3, gemma, gemma2,
// gemma3, gpt2; of any other, and of files without tensors, the tokenizer can be read.
ForeignModel ReadGgufModel(GgufFile gguf);

// Whether the bytes are a model of llama2.c: its magic, or without one a header whose sizes give
// exactly this file.
bool LooksLikeLlama2c(std::span<const std::byte> bytes);
// Versions 0 (f32 without a magic) and 1. `vocabulary`: the bytes of its tokenizer.bin, or none.
ForeignModel ReadLlama2cModel(std::span<const std::byte> bytes, const std::string& name,
                              std::shared_ptr<const MappedFile> vocabulary);
// Where a model file of llama2.c has its vocabulary: beside it, tok<tokens>.bin or tokenizer.bin;
// empty where neither is.
std::filesystem::path FindLlama2cVocabulary(const std::filesystem::path& model,
                                            std::span<const std::byte> bytes);

}  // namespace tandem::engine
