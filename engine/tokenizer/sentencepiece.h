#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {

// A `tokenizer.model` as SentencePiece writes it.
struct LoadedSentencePiece {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<TokenId> bos;  // the control tokens that the model calls so
  std::optional<TokenId> eos;
  bool is_bpe = false;
};

// `file` names the file in messages. Throws kDataLoss for a broken file, kUnsupported for a model
// of words or characters and for options that README.md does not list.
LoadedSentencePiece LoadSentencePiece(std::string_view bytes, const std::string& file);

}  // namespace tandem::engine
