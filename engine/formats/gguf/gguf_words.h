#pragma once

#include <optional>
#include <string>

#include "engine/formats/gguf/gguf.h"

namespace tandem::engine {

// What a GGUF file says, told in Hugging Face's words. Private to engine/io.

// config.json. Throws kUnsupported for an architecture that we have no family for.
std::string GgufConfigJson(const GgufFile& file);
// generation_config.json: the tokens that end an answer.
std::string GgufGenerationConfigJson(const GgufFile& file);

// The vocabulary: a tokenizer.json for `gpt2` (BPE over bytes), a tokenizer.model for `llama` and
// `t5` (SentencePiece); nullopt for the other one of the two, and where there is no vocabulary.
std::optional<std::string> GgufTokenizerJson(const GgufFile& file);
std::optional<std::string> GgufTokenizerModel(const GgufFile& file);
// tokenizer_config.json: bos, eos and the chat template.
std::optional<std::string> GgufTokenizerConfigJson(const GgufFile& file);

// The double that prints as the nearest float does: keys hold 32-bit floats, 1e-05 among them.
double Shortest(double value);

}  // namespace tandem::engine
