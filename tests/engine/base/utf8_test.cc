#include "engine/base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

TEST(Utf8, EveryCodePointReadsBackAndSurrogatesAreNone) {
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    std::string text;
    AppendUtf8(c, text);
    const bool is_surrogate = c >= 0xD800 && c < 0xE000;
    ASSERT_EQ(WholeCharacterBytes(text), is_surrogate ? 0 : text.size()) << c;
    ASSERT_EQ(IsValidUtf8(text), !is_surrogate) << c;
    if (is_surrogate) continue;
    const Utf8Char decoded = DecodeUtf8(text.data());
    ASSERT_EQ(decoded.value, c);
    ASSERT_EQ(decoded.size, text.size());
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const Utf8Unit unit = NextUtf8(std::string_view(text).substr(0, cut));
      ASSERT_EQ(unit.kind, Utf8Kind::kTruncated) << c;
      ASSERT_EQ(unit.size, cut) << c;
    }
  }
}

TEST(Utf8, WhatIsNoCharacterIsCutAtItsMaximalPart) {
  const struct {
    std::string_view bytes;
    uint32_t size;
  } cases[] = {
      {"\x80", 1},          {"\xC0\x80", 1},     {"\xC1\xBF", 1},         {"\xC3(", 1},
      {"\xE0\x9F\xBF", 1},  {"\xED\xA0\x80", 1}, {"\xE2\x82(", 2},        {"\xF0\x8F\xBF\xBF", 1},
      {"\xF0\x9F\x98(", 3}, {"\xF0\x9F(", 2},    {"\xF4\x90\x80\x80", 1}, {"\xF5\x80\x80\x80", 1},
      {"\xFF", 1},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(testing::PrintToString(std::string(one.bytes)));
    EXPECT_EQ(NextUtf8(one.bytes).kind, Utf8Kind::kInvalid);
    EXPECT_EQ(NextUtf8(one.bytes).size, one.size);
    EXPECT_EQ(WholeCharacterBytes(one.bytes), 0U);
    EXPECT_FALSE(IsValidUtf8(one.bytes));
  }
}

TEST(Utf8, TheValidPrefixEndsAtTheFirstFaultWhereverItStands) {
  for (size_t before = 0; before < 20; ++before) {
    for (size_t behind = 0; behind < 20; ++behind) {
      const std::string good = std::string(before, 'a') + "\xC3\xA9";
      EXPECT_EQ(ValidUtf8Prefix(good + "\xFF" + std::string(behind, 'b')), good.size());
      EXPECT_EQ(ValidUtf8Prefix(good + std::string(behind, 'b')), good.size() + behind);
      EXPECT_TRUE(IsValidUtf8(good + std::string(behind, 'b')));
    }
  }
  EXPECT_TRUE(IsValidUtf8(""));
}

}  // namespace
}  // namespace tandem
