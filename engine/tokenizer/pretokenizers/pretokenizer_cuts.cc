#include <optional>

#include "engine/tokenizer/pretokenizers/pretokenizer.h"
#include "engine/tokenizer/text/unicode.h"

// Stages of pre-tokenizers that patterns cannot express.
namespace tandem::engine {
namespace {

PieceOfText PartOf(const PieceOfText& piece, size_t begin, size_t end) {
  return {piece.text.substr(begin, end - begin), piece.at_start || begin > 0,
          piece.at_origin && begin == 0};
}

enum class WordClass { kSpace, kWord, kOther };

WordClass WordClassOf(uint32_t c) {
  if (IsWordCharacter(c)) return WordClass::kWord;
  return IsWhiteSpace(c) ? WordClass::kSpace : WordClass::kOther;
}

// Japanese mixes three scripts, which count as one.
uint32_t JoinedScriptOf(uint32_t c) {
  static const uint32_t han = ScriptOf(0x4E00);
  static const uint32_t hiragana = ScriptOf(0x3042), katakana = ScriptOf(0x30A2);
  constexpr uint32_t kProlongedSound = 0x30FC;
  if (c == ' ') return 0;
  const uint32_t script = ScriptOf(c);
  return c == kProlongedSound || script == hiragana || script == katakana ? han : script;
}

}  // namespace

Pretokenizer::Cut MetaspaceCut(std::string replacement, PrependScheme scheme) {
  return [replacement = std::move(replacement), scheme](const PieceOfText& piece,
                                                        const Pretokenizer::PieceSink& sink) {
    std::string text;
    text.reserve(piece.text.size() + piece.text.size() / 2 + replacement.size());
    for (const char c : piece.text) {
      if (c == ' ') {
        text += replacement;
      } else {
        text.push_back(c);
      }
    }
    const bool wanted =
        scheme == PrependScheme::kAlways || (scheme == PrependScheme::kFirst && piece.at_origin);
    if (wanted && piece.at_start && !text.starts_with(replacement)) text.insert(0, replacement);
    sink({text, piece.at_start, piece.at_origin});
  };
}

Pretokenizer::Cut WordCut() {
  return [](const PieceOfText& piece, const Pretokenizer::PieceSink& sink) {
    size_t begin = 0;
    WordClass current = WordClass::kSpace;
    const auto flush = [&](size_t end) {
      if (current != WordClass::kSpace) sink(PartOf(piece, begin, end));
      begin = end;
    };
    for (size_t i = 0; i < piece.text.size();) {
      const Utf8Char c = DecodeUtf8(piece.text.data() + i);
      if (const WordClass next = WordClassOf(c.value); next != current) {
        flush(i);
        current = next;
      }
      i += c.size;
    }
    flush(piece.text.size());
  };
}

Pretokenizer::Cut ScriptCut() {
  return [](const PieceOfText& piece, const Pretokenizer::PieceSink& sink) {
    // Characters without a script join those before them; at the beginning they are dropped.
    std::optional<size_t> begin;
    uint32_t current = 0;
    for (size_t i = 0; i < piece.text.size();) {
      const Utf8Char c = DecodeUtf8(piece.text.data() + i);
      const uint32_t script = JoinedScriptOf(c.value);
      if (script != 0 && script != current) {
        if (begin) sink(PartOf(piece, *begin, i));
        begin = i;
        current = script;
      }
      i += c.size;
    }
    if (begin) sink(PartOf(piece, *begin, piece.text.size()));
  };
}

Pretokenizer::Cut LengthCut(size_t characters) {
  return [characters](const PieceOfText& piece, const Pretokenizer::PieceSink& sink) {
    size_t begin = 0, count = 0;
    for (size_t i = 0; i < piece.text.size();) {
      i += DecodeUtf8(piece.text.data() + i).size;
      if (++count < characters && i < piece.text.size()) continue;
      sink(PartOf(piece, begin, i));
      begin = i;
      count = 0;
    }
  };
}

Pretokenizer::Cut ByteLevelCut() {
  return [](const PieceOfText& piece, const Pretokenizer::PieceSink& sink) {
    std::string text;
    AppendByteSpelling(piece.text, text);
    sink({text, piece.at_start, piece.at_origin});
  };
}

}  // namespace tandem::engine
