#pragma once

#include <string>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::server {

// Loads the tokenizer of a model directory, a model file (GGUF, llama2.c), a .model or .tiktoken
// file, or else a tokenizer.json. Throws kNotFound if there is none, else as engine::LoadTokenizer.
engine::TokenizerFiles LoadTokenizerAt(const std::string& where);

}  // namespace tandem::server
