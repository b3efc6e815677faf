#pragma once

#include <optional>
#include <string>

#include "engine/formats/gguf/gguf.h"

namespace tandem::engine {

// Hugging Face files generated from a GGUF file. Private to engine/formats/gguf.

// config.json. Throws kUnsupported for an architecture without a family.
std::string GgufConfigJson(const GgufFile& file);
// generation_config.json: the tokens that end an answer, and the recommended sampling.
std::string GgufGenerationConfigJson(const GgufFile& file);

// The vocabulary: tokenizer.json for `gpt2` (byte-level BPE), tokenizer.model for `llama` and `t5`
// (SentencePiece). Each returns nullopt for the other kind and when the file has no vocabulary.
std::optional<std::string> GgufTokenizerJson(const GgufFile& file);
std::optional<std::string> GgufTokenizerModel(const GgufFile& file);
// tokenizer_config.json: bos, eos and the chat template.
std::optional<std::string> GgufTokenizerConfigJson(const GgufFile& file);

// The double that prints like the nearest float: GGUF keys hold 32-bit floats such as 1e-05.
double Shortest(double value);

}  // namespace tandem::engine
