#pragma once

#include <string>
#include <vector>

#include "convert/formats/gguf/gguf_writer.h"
#include "convert/tensors/model_source.h"
#include "engine/model/families/config.h"

namespace tandem::convert {

// Adds the source's tokenizer as `tokenizer.*` keys: byte-level BPE, SentencePiece BPE or no
// tokenizer
// (`no_vocab`). There are as many tokens as embeddings. Throws kUnsupported
// naming the part that GGUF cannot express (unnamed patterns, Unigram, WordPiece). `warnings`
// receives differences that a reader may show.
void AddGgufTokenizer(const ModelSource& source, const engine::ModelConfig& config, GgufKeys& keys,
                      std::vector<std::string>* warnings);

// Compares the tokenizers of both on texts of many kinds and on every token. Throws kUnsupported
// naming a text that they encode or decode differently. A difference next to special tokens is only
// a warning.
void CompareTokenizers(const ModelSource& source, const ModelSource& written,
                       std::vector<std::string>* warnings);

}  // namespace tandem::convert
