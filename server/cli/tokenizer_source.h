#pragma once

#include <string>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::server {

// The tokenizer of a model directory or of one file: a tokenizer.model or .tiktoken by its ending,
// else a tokenizer.json. Throws kNotFound where there is none, else as engine::LoadTokenizer.
engine::TokenizerFiles LoadTokenizerAt(const std::string& where);

}  // namespace tandem::server
