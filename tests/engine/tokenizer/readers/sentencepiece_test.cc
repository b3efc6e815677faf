#include "engine/tokenizer/readers/sentencepiece.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/base/error.h"
#include "tests/engine/tokenizer/tokenizer_test_support.h"

namespace tandem::engine {
namespace {

using Ids = std::vector<TokenId>;

std::string Varint(uint64_t value) {
  std::string out;
  while (value >= 128) {
    out.push_back(static_cast<char>(value | 128));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
  return out;
}
std::string Number(uint32_t field, uint64_t value) { return Varint(field << 3) + Varint(value); }
std::string Bytes(uint32_t field, std::string_view bytes) {
  return Varint(field << 3 | 2) + Varint(bytes.size()) + std::string(bytes);
}
std::string Float(uint32_t field, float value) {
  std::string out = Varint(field << 3 | 5);
  out.resize(out.size() + 4);
  std::memcpy(&out[out.size() - 4], &value, 4);
  return out;
}

constexpr uint64_t kNormal = 1, kUnknown = 2, kControl = 3, kUser = 4, kByte = 6;
std::string Piece(std::string_view text, float score, uint64_t type) {
  return Bytes(1, Bytes(1, text) + Float(2, score) + Number(3, type));
}

constexpr uint64_t kUnigram = 1, kBpe = 2;
struct Options {
  uint64_t model = kBpe;
  bool bytes = true;
  bool dummy_prefix = true;
  bool remove_extra = false;
  std::string more_pieces = {};
  std::string charsmap = {};
};

// <unk> <s> </s>, then bytes, then pieces over a, b and the metaspace.
std::string Model(const Options& options) {
  std::string model =
      Piece("<unk>", 0, kUnknown) + Piece("<s>", 0, kControl) + Piece("</s>", 0, kControl);
  for (int b = 0; b < 256 && options.bytes; ++b) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(b));
    model += Piece(name, 0, kByte);
  }
  float score = -1;
  for (const char* piece : {"ab", "\u2581ab", "\u2581\u2581", "\u00e9b", "\u2581", "a", "b"}) {
    model += Piece(piece, score, kNormal);
    score -= 1;
  }
  model += options.more_pieces;
  model += Bytes(2, Number(3, options.model) + Number(35, options.bytes ? 1 : 0));
  model += Bytes(3, Bytes(2, options.charsmap) + Number(3, options.dummy_prefix ? 1 : 0) +
                        Number(4, options.remove_extra ? 1 : 0));
  return model;
}

TokenizerFiles Load(std::string model) {
  TokenizerTexts texts;
  texts.source = "test";
  texts.tokenizer_model = std::move(model);
  return *LoadTokenizer(texts);
}

TEST(SentencePiece, MergesByScoreAndFallsBackToBytes) {
  const TokenizerFiles files = Load(Model({}));
  const Tokenizer& tokenizer = *files.tokenizer;
  const auto id = [&](const char* piece) { return *tokenizer.FindToken(piece); };

  EXPECT_EQ(files.bos, 1);
  EXPECT_EQ(files.eos, 2);
  EXPECT_TRUE(files.add_bos);
  EXPECT_TRUE(tokenizer.IsSpecial(0));
  EXPECT_EQ(tokenizer.Encode("ab ba", kTextOnly),
            (Ids{id("\u2581ab"), id("\u2581"), id("b"), id("a")}));
  EXPECT_EQ(tokenizer.Encode("az", kTextOnly), (Ids{id("\u2581"), id("a"), 3 + 'z'}));
  EXPECT_EQ(tokenizer.FindToken("<0x41>"), 3 + 0x41);
  EXPECT_EQ(tokenizer.TokenBytes(3 + 0x41), "A");
  for (const char* text : {"ab  ba", " a", "z\u00e9 \u4e2d", "", "  ", "a<s>b"}) {
    EXPECT_EQ(Decode(tokenizer, tokenizer.Encode(text, kTextOnly), false), text);
  }
}

TEST(SentencePiece, MergesPassThroughCharactersThatAreNoPieces) {
  const TokenizerFiles files = Load(Model({}));
  const Tokenizer& tokenizer = *files.tokenizer;

  // é is not a piece: éb is one, and a single é falls back to its bytes.
  EXPECT_EQ(
      tokenizer.Encode("a\u00e9b", kTextOnly),
      (Ids{*tokenizer.FindToken(" "), *tokenizer.FindToken("a"), *tokenizer.FindToken("\u00e9b")}));
  EXPECT_EQ(tokenizer.Encode("\u00e9", kTextOnly),
            (Ids{*tokenizer.FindToken(" "), 3 + 0xC3, 3 + 0xA9}));
  EXPECT_FALSE(tokenizer.FindToken("\u00e9"));
  EXPECT_EQ(tokenizer.vocab_size(), 3 + 256 + 7);
}

TEST(SentencePiece, ControlTokensAreReadOnlyOnRequest) {
  const TokenizerFiles files = Load(Model({}));
  const Ids parsed = files.tokenizer->Encode("ab</s>", kParse);

  EXPECT_EQ(parsed, (Ids{*files.tokenizer->FindToken("\u2581ab"), 2}));
  const Ids plain = files.tokenizer->Encode("ab</s>", kTextOnly);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 2), 0);
}

TEST(SentencePiece, WithoutBytesUnknownCharactersAreOneToken) {
  for (const uint64_t kind : {kBpe, kUnigram}) {
    const TokenizerFiles files = Load(Model({.model = kind, .bytes = false}));
    const Tokenizer& tokenizer = *files.tokenizer;

    EXPECT_EQ(tokenizer.Encode("xyza", kTextOnly),
              (Ids{*tokenizer.FindToken(" "), 0, *tokenizer.FindToken("a")}));
    EXPECT_EQ(files.add_bos, kind == kBpe);
  }
}

TEST(SentencePiece, UnigramTakesTheBestSum) {
  const TokenizerFiles files = Load(Model({.model = kUnigram, .dummy_prefix = false}));
  const Tokenizer& tokenizer = *files.tokenizer;

  // Compares ab (-1) + ab (-1) with _ab (-2) and so on.
  EXPECT_EQ(tokenizer.Encode("abab ab", kTextOnly),
            (Ids{*tokenizer.FindToken("ab"), *tokenizer.FindToken("ab"),
                 *tokenizer.FindToken("\u2581ab")}));
  EXPECT_FALSE(tokenizer.adds_leading_space());
}

TEST(SentencePiece, ExtraWhiteSpaceGoesWhereTheModelSaysSo) {
  const TokenizerFiles files = Load(Model({.remove_extra = true}));
  const Ids ids = files.tokenizer->Encode("  ab   ab ", kTextOnly);

  EXPECT_EQ(ids, files.tokenizer->Encode("ab ab", kTextOnly));
  EXPECT_EQ(Decode(*files.tokenizer, ids, false), "ab ab");
  EXPECT_EQ(files.tokenizer->Encode("   ", kTextOnly), Ids{});
}

TEST(SentencePiece, WhatTheUserDefinedIsNeverMergedOrRewritten) {
  for (const uint64_t kind : {kBpe, kUnigram}) {
    const TokenizerFiles files = Load(
        Model({.model = kind, .more_pieces = Piece("bab", 0, kUser) + Piece("<x>", 0, kUser)}));
    const Tokenizer& tokenizer = *files.tokenizer;
    const TokenId bab = *tokenizer.FindToken("bab");

    EXPECT_EQ(tokenizer.Encode("abab", kTextOnly),
              (Ids{*tokenizer.FindToken(" "), *tokenizer.FindToken("a"), bab}));
    EXPECT_EQ(Decode(tokenizer, Ids{bab, bab}, true), "babbab");
    // Plain text contains no markup, as everywhere.
    const Ids plain = tokenizer.Encode("<x>", kTextOnly), parsed = tokenizer.Encode("<x>", kParse);
    EXPECT_EQ(std::count(plain.begin(), plain.end(), *tokenizer.FindToken("<x>")), 0);
    EXPECT_EQ(std::count(parsed.begin(), parsed.end(), *tokenizer.FindToken("<x>")), 1);
  }
}

// One rule: "x" becomes "ab". charsmap.cc describes the units.
std::string OneRule() {
  std::vector<uint32_t> units(512, 0x80000000u);
  constexpr uint32_t kRoot = 0, kBase = 256;
  units[kRoot] = kBase << 10;
  const uint32_t x = kBase ^ 'x';
  units[x] = (x ^ (kBase + 1)) << 10 | 1u << 8 | 'x';
  units[kBase + 1] = 0x80000000u | 1;
  std::string blob(4, '\0');
  const auto bytes = static_cast<uint32_t>(units.size() * 4);
  std::memcpy(blob.data(), &bytes, 4);
  blob.append(reinterpret_cast<const char*>(units.data()), bytes);
  return blob + std::string("\0ab\0", 4);
}

TEST(SentencePiece, RulesOfTheModelRewriteTheText) {
  const TokenizerFiles files = Load(Model({.charsmap = OneRule()}));

  EXPECT_EQ(files.tokenizer->Encode("x x", kTextOnly), files.tokenizer->Encode("ab ab", kTextOnly));
  EXPECT_NE(files.tokenizer->Encode("y", kTextOnly), files.tokenizer->Encode("ab", kTextOnly));
}

TEST(SentencePiece, AnyTextRoundTrips) {
  for (const uint64_t kind : {kBpe, kUnigram}) {
    const TokenizerFiles files = Load(Model({.model = kind}));
    for (uint64_t seed = 0; seed < 500; ++seed) {
      std::mt19937_64 random(seed);
      std::string text = RandomText(random, 40, /*with_invalid=*/true);
      // The metaspace is a space in these vocabularies.
      for (size_t at; (at = text.find("\u2581")) != std::string::npos;) text.replace(at, 3, "_");
      for (const SpecialTokens special : {kTextOnly, kParse}) {
        std::string bytes;
        for (const TokenId id : files.tokenizer->Encode(text, special)) {
          EXPECT_FALSE(special == kTextOnly && files.tokenizer->IsSpecial(id));
          bytes += files.tokenizer->TokenBytes(id);
        }
        // The tokenizer adds one space before a text that begins with a character.
        ASSERT_TRUE(bytes == text || bytes == " " + text) << "seed " << seed;
      }
    }
  }
}

struct Broken {
  const char* name;
  std::string model;
  ErrorCode code;
  const char* message;
};

TEST(SentencePiece, BrokenModelsAreNamedInOneLine) {
  constexpr auto kLoss = ErrorCode::kDataLoss;
  constexpr auto kUnsupported = ErrorCode::kUnsupported;
  const std::string rule = OneRule();
  std::string loop = rule, far = rule, without = rule;
  loop.replace(4 + (256 ^ 'x') * 4, 4, std::string("\x78\xE0\x01\0", 4));  // its own child
  far.replace(4 + 257 * 4, 4, "\xFF\xFF\xFF\x8F");
  without.pop_back();
  const std::vector<Broken> corpus = {
      {"nothing", "", kLoss, "pieces are missing"},
      {"a number without end", std::string(20, '\xFF'), kLoss, "byte 10 of the model"},
      {"a field beyond the file", Varint(1 << 3 | 2) + Varint(1ull << 62) + "ab", kLoss,
       "only 2 bytes remain"},
      {"a group", Model({}) + Varint(9 << 3 | 3), kLoss, "unsupported wire type"},
      {"field zero", Number(0, 1), kLoss, "invalid field number"},
      {"a piece that is a number", Number(1, 7), kLoss, "must hold bytes in field 1"},
      {"a score that is a string", Bytes(1, Bytes(1, "a") + Bytes(2, "x")), kLoss,
       "pieces[0] must hold a float"},
      {"a score that is none", Piece("a", std::numeric_limits<float>::quiet_NaN(), kNormal), kLoss,
       "finite"},
      {"an empty piece", Piece("", 0, kNormal), kLoss, "pieces[0] is empty"},
      {"an endless piece", Piece(std::string(5000, 'a'), 0, kNormal), kLoss, "at most 1024"},
      {"a piece that is not UTF-8", Piece("\xFF", 0, kNormal), kLoss, "pieces[0] must be UTF-8"},
      {"an unknown type", Piece("a", 0, 77), kLoss, "type 77"},
      {"twice", Model({.more_pieces = Piece("a", 0, kNormal)}), kLoss, "repeats 'a'"},
      {"no unknown", Piece("a", 0, kNormal), kLoss, "UNKNOWN"},
      {"bytes missing", Piece("a", 0, kNormal) + Bytes(2, Number(35, 1)), kLoss, "256 bytes"},
      {"words", Model({.model = 3}), kUnsupported, "trainer_spec.model_type"},
      {"unused", Model({.more_pieces = Piece("q", 0, 5)}), kUnsupported, "UNUSED"},
      {"spaces behind", Model({}) + Bytes(2, Number(24, 1)), kUnsupported, "whitespace_as_suffix"},
      {"rules for decoding", Model({}) + Bytes(5, Bytes(2, "x")), kUnsupported, "denormalizer"},
      {"rules too short", Model({.charsmap = "ab"}), kLoss, "precompiled_charsmap is too short"},
      {"rules of a wrong size", Model({.charsmap = "\xFF\xFF\xFF\x7F...."}), kLoss, "wrong size"},
      {"rules without an end", Model({.charsmap = without}), kLoss, "without a final NUL"},
      {"rules in a circle", Model({.charsmap = loop}), kLoss, "has a cycle"},
      {"a rule without replacement", Model({.charsmap = far}), kLoss, "without a replacement"},
  };
  for (const Broken& broken : corpus) {
    SCOPED_TRACE(broken.name);
    try {
      LoadSentencePiece(broken.model, "test/tokenizer.model");
      ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.code(), broken.code) << message;
      EXPECT_TRUE(message.starts_with("test/tokenizer.model: ")) << message;
      EXPECT_NE(message.find(broken.message), std::string::npos) << message;
      EXPECT_LT(message.size(), 200u) << message;
    }
  }
}

TEST(SentencePiece, TruncatedAnywhereOrWithBytesChangedNothingCrashes) {
  const std::string whole = Model({.charsmap = OneRule()});
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::string model = whole;
    if (seed % 3 == 0) {
      model.resize(random() % model.size());
    } else {
      for (uint64_t i = 0; i <= random() % 4; ++i) {
        model[random() % model.size()] = static_cast<char>(random());
      }
    }
    try {
      const auto loaded = LoadSentencePiece(model, "test");
      const Ids ids = loaded.tokenizer->Encode("x ab\xFF<s> zz\u4e2d", kParse);
      Decode(*loaded.tokenizer, ids, true);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kDataLoss || error.code() == ErrorCode::kUnsupported ||
                  error.code() == ErrorCode::kInvalidArgument)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace tandem::engine
