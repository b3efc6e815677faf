#pragma once

#include "engine/io/foreign_model.h"
#include "engine/io/gguf.h"

namespace tandem::engine {

// Reads a GGUF file with all its parts. Families: llama (also Mistral's), qwen2, qwen3, gemma,
// gemma2, gemma3, gpt2. Of any other family, and of a file without tensors, the tokenizer is
// readable.
ForeignModel ReadGgufModel(GgufFile gguf);

}  // namespace tandem::engine
