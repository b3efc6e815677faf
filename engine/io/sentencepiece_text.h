#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// A vocabulary as the bytes of a `tokenizer.model`, which engine/tokenizer reads.
enum class PieceType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};
struct ScoredPiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};
struct SentencePieceText {
  std::vector<ScoredPiece> pieces;  // by id
  bool is_bpe = true;               // else Unigram
  std::string bos, eos;             // empty: none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = false;
  std::string_view charsmap = {};
};
std::string WriteSentencePiece(const SentencePieceText& model);

}  // namespace tandem::engine
