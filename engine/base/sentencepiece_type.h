#pragma once

#include <cstdint>

namespace tandem {

// Type of a SentencePiece piece, numbered as in sentencepiece_model.proto and in GGUF's
// tokenizer.ggml.token_type.
enum class SentencePieceType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

}  // namespace tandem
