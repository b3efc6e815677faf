#pragma once

#include <string>
#include <vector>

#include "convert/formats/gguf/gguf_writer.h"
#include "convert/tensors/model_source.h"
#include "engine/model/config.h"

namespace tandem::convert {

// The tokenizer files of a source as `tokenizer.*` keys: byte-level BPE as `gpt2`, BPE over pieces
// (SentencePiece's) as `llama`; a source without a tokenizer as `no_vocab`. Tokens are as many as
// the model has embeddings. Throws kUnsupported, naming the part, for a tokenizer that GGUF has no
// words for (patterns without a name, Unigram, WordPiece): convert such a model to hf or native.
// `warnings` gets what the file cannot say and a reader may do otherwise.
void AddGgufTokenizer(const ModelSource& source, const engine::ModelConfig& config, GgufKeys& keys,
                      std::vector<std::string>* warnings);

// Whether the tokenizer of `written` encodes and decodes as that of `source`, on texts of many
// kinds and on every token: throws kUnsupported naming a text that it does not. What differs only
// next to special tokens is a warning.
void CompareTokenizers(const ModelSource& source, const ModelSource& written,
                       std::vector<std::string>* warnings);

}  // namespace tandem::convert
