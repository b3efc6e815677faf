#pragma once

#include "engine/formats/gguf/gguf.h"
#include "engine/formats/stored/single_file_model.h"

namespace tandem::engine {

// Reads a GGUF file with all its parts. Families: llama (also Mistral's), qwen2, qwen3, gemma,
// gemma2, gemma3, gpt2. Of any other family, and of a file without tensors, the tokenizer is
// readable.
SingleFileModel ReadGgufModel(GgufFile gguf);

}  // namespace tandem::engine
