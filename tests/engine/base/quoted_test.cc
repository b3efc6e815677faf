#include "engine/base/quoted.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

TEST(Quoted, IsOnePrintableLine) {
  EXPECT_EQ(Quoted("plain"), "'plain'");
  EXPECT_EQ(Quoted("naïve 犬"), "'naïve 犬'");
  EXPECT_EQ(Quoted("a\nb\tc\x7f"), "'a?b?c?'");
  EXPECT_EQ(Quoted("\xff,\xfe"), "'?,?'");
}

TEST(Quoted, IsCutBetweenCharacters) {
  EXPECT_EQ(Quoted("abcdef", 4), "'abcd…'");
  EXPECT_EQ(Quoted("abc犬def", 4), "'abc犬…'");
  EXPECT_EQ(Quoted(std::string(121, 'x')).size(), 120 + 2 + 3u);
}

}  // namespace
}  // namespace tandem
