#include "engine/formats/stored/sentencepiece_text.h"

#include <algorithm>
#include <cstring>

// Writes a protobuf message with the field numbers of sentencepiece_model.proto.
namespace tandem::engine {
namespace {

void AppendVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void AppendNumber(std::string& out, uint32_t field, uint64_t value) {
  AppendVarint(out, field << 3);
  AppendVarint(out, value);
}

void AppendBytes(std::string& out, uint32_t field, std::string_view bytes) {
  AppendVarint(out, field << 3 | 2);
  AppendVarint(out, bytes.size());
  out += bytes;
}

void AppendFloat(std::string& out, uint32_t field, float value) {
  char bytes[sizeof(value)];
  std::memcpy(bytes, &value, sizeof(value));
  AppendVarint(out, field << 3 | 5);
  out.append(bytes, sizeof(bytes));
}

std::string PieceMessage(const ScoredPiece& piece) {
  std::string out;
  AppendBytes(out, 1, piece.text);
  AppendFloat(out, 2, piece.score);
  AppendNumber(out, 3, static_cast<uint64_t>(piece.type));
  return out;
}

}  // namespace

std::string WriteSentencePiece(const SentencePieceText& model) {
  const auto bytes = std::count_if(model.pieces.begin(), model.pieces.end(), [](const auto& piece) {
    return piece.type == SentencePieceType::kByte;
  });
  std::string trainer;
  AppendNumber(trainer, 3, model.is_bpe ? 2 : 1);
  AppendNumber(trainer, 35, bytes == 256 ? 1 : 0);  // byte_fallback
  if (!model.bos.empty()) AppendBytes(trainer, 46, model.bos);
  if (!model.eos.empty()) AppendBytes(trainer, 47, model.eos);
  std::string normalizer;
  if (!model.charsmap.empty()) AppendBytes(normalizer, 2, model.charsmap);
  AppendNumber(normalizer, 3, model.add_dummy_prefix ? 1 : 0);
  AppendNumber(normalizer, 4, model.remove_extra_whitespaces ? 1 : 0);
  AppendNumber(normalizer, 5, 1);  // escape_whitespaces

  std::string out;
  for (const ScoredPiece& piece : model.pieces) AppendBytes(out, 1, PieceMessage(piece));
  AppendBytes(out, 2, trainer);
  AppendBytes(out, 3, normalizer);
  return out;
}

std::string WithMetaspaces(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ' ') {
      out += "\xE2\x96\x81";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace tandem::engine
