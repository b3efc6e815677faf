#include "server/wire/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/utf8.h"

namespace tandem::server {
namespace {

TEST(Utf8, KnowsWhatIsValid) {
  for (const char* good : {"", "a", "é", "€", "😀", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsValidUtf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xc3", "\xc0\xaf", "\xe2\x82", "\xed\xa0\x80",
                          "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xff", "a\xc3z"}) {
    EXPECT_FALSE(IsValidUtf8(bad)) << bad;
  }
}

// The offset of each piece in the joined text.
std::vector<int64_t> Offsets(const std::vector<std::string>& pieces) {
  CharacterCounter counter;
  std::vector<int64_t> out;
  for (const std::string& piece : pieces) out.push_back(counter.Push(piece));
  return out;
}

TEST(CharacterCounter, CountsCharactersAndNotBytes) {
  EXPECT_EQ(Offsets({"aé", "€", "", "😀", ""}), (std::vector<int64_t>{0, 2, 3, 3, 4}));
}

TEST(CharacterCounter, PartsOfACharacterStandWhereItStands) {
  EXPECT_EQ(Offsets({"a", "\xf0\x9f", "", "\x98", "\x80z", "y"}),
            (std::vector<int64_t>{0, 1, 1, 1, 1, 3}));
}

TEST(CharacterCounter, WhatIsNoCharacterCountsAsItsReplacements) {
  EXPECT_EQ(Offsets({"\x80", "\xe0\x80", "a"}), (std::vector<int64_t>{0, 1, 3}));
  EXPECT_EQ(Offsets({"\xe2\x82", "a", "b"}), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(Offsets({"\xe2\x82", "\xe2", "\x82\xac", "b"}), (std::vector<int64_t>{0, 1, 1, 2}));
}

TEST(CharacterCounter, AnEndOfTextEndsTheCharacter) {
  CharacterCounter counter;
  counter.Push("a\xe2\x82");

  counter.Flush();

  EXPECT_EQ(counter.Push("\xac"), 2);
  EXPECT_EQ(counter.Push("a"), 3);
}

}  // namespace
}  // namespace tandem::server
