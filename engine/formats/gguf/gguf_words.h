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

// The vocabulary: tokenizer.json for byte-level BPE, tokenizer.model for SentencePiece. Each
// returns nullopt for the other kind and when the file has no vocabulary.
std::optional<std::string> GgufTokenizerJson(const GgufFile& file);
std::optional<std::string> GgufTokenizerModel(const GgufFile& file);
// tokenizer_config.json: bos, eos and the chat template.
std::optional<std::string> GgufTokenizerConfigJson(const GgufFile& file);

}  // namespace tandem::engine
