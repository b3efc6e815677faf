#include "engine/tokenizer/text/unicode.h"

#include <gtest/gtest.h>

#include "tests/engine/tokenizer/tokenizer_test_support.h"

namespace tandem::engine {
namespace {

std::string Repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(Unicode, InvalidBytesAreCutAtMaximalSubparts) {
  // Overlong, surrogate, beyond U+10FFFF: the first byte is already invalid.
  for (const char* bytes : {"\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                            "\xF5\x80\x80\x80", "\x80", "\xFF"}) {
    const Utf8Unit unit = NextUtf8(bytes);
    EXPECT_EQ(unit.kind, Utf8Kind::kInvalid);
    EXPECT_EQ(unit.size, 1u);
  }

  const Utf8Unit three = NextUtf8("\xF0\x9F\x98 ");
  const Utf8Unit open = NextUtf8("\xF0\x9F\x98");

  EXPECT_EQ(three.kind, Utf8Kind::kInvalid);
  EXPECT_EQ(three.size, 3u);
  EXPECT_EQ(open.kind, Utf8Kind::kTruncated);
  EXPECT_EQ(open.size, 3u);
}

TEST(Unicode, EveryCodePointSurvivesEncodingAndDecoding) {
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string bytes;
    AppendUtf8(c, bytes);
    const Utf8Unit unit = NextUtf8(bytes);
    ASSERT_TRUE(unit.kind == Utf8Kind::kWhole && unit.size == bytes.size()) << c;
    ASSERT_EQ(DecodeUtf8(bytes.data()).value, c);
  }
}

TEST(Unicode, StretchesAlternateAndLoseNoByte) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::string text = RandomText(random, 40, /*with_invalid=*/true);

    std::string joined;
    std::optional<bool> previous;
    ForEachUtf8Stretch(text, [&](std::string_view stretch, bool valid) {
      EXPECT_FALSE(stretch.empty());
      EXPECT_NE(previous, valid);
      EXPECT_EQ(ValidUtf8Prefix(stretch) == stretch.size(), valid);
      previous = valid;
      joined += stretch;
    });

    EXPECT_EQ(joined, text);
  }
}

TEST(Unicode, ByteSpellingsAreThoseOfGpt2) {
  std::string spelling;
  AppendByteSpelling(" \n\x80\xE9\x7F", spelling);

  EXPECT_EQ(spelling, "\u0120\u010A\u0122\u00E9\u0121");
  EXPECT_EQ(BytesOfSpelling(spelling), " \n\x80\xE9\x7F");
  EXPECT_EQ(BytesOfSpelling("a b"), std::nullopt);
  EXPECT_EQ(BytesOfSpelling("\u4e2d"), std::nullopt);
}

TEST(Unicode, NormalFormsComposeAndDecompose) {
  EXPECT_EQ(Normalize(NormalForm::kNfc, "e\u0301 \uFB01"), "\u00e9 \uFB01");
  EXPECT_EQ(Normalize(NormalForm::kNfd, "\u00e9"), "e\u0301");
  EXPECT_EQ(Normalize(NormalForm::kNfkc, "\uFB01 e\u0301"), "fi \u00e9");
  EXPECT_EQ(Normalize(NormalForm::kNfkd, "\uFB01\u00e9"), "fie\u0301");
}

TEST(Unicode, LongRunsOfMarksEndInCanonicalOrder) {
  // U+0316 (class 220) sorts before U+0301 (230). Quadratic work would not finish at the last size.
  for (const int count : {1, 31, 32, 33, 100, 300'000}) {
    const std::string text = std::string("x") + Repeat("\u0301\u0316", count) + "y";

    EXPECT_TRUE(Normalize(NormalForm::kNfc, text) ==
                std::string("x") + Repeat("\u0316", count) + Repeat("\u0301", count) + "y")
        << count;
  }
}

TEST(Unicode, MarksThatOnlyAppearByDecompositionAreOrderedToo) {
  const int count = 300'000;

  const std::string text = Normalize(NormalForm::kNfc, std::string("x") + Repeat("\u0F73", count));

  EXPECT_TRUE(text == std::string("x") + Repeat("\u0F71", count) + Repeat("\u0F72", count));
}

}  // namespace
}  // namespace tandem::engine
