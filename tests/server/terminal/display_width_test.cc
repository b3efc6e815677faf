#include "server/terminal/display_width.h"

#include <gtest/gtest.h>

namespace tandem::server {
namespace {

TEST(DisplayWidth, CountsColumnsNotBytes) {
  EXPECT_EQ(DisplayWidth("abc"), 3);
  EXPECT_EQ(DisplayWidth("Łódź"), 4);
  EXPECT_EQ(DisplayWidth("你好"), 4);
  EXPECT_EQ(DisplayWidth("한"), 2);
  EXPECT_EQ(DisplayWidth("\u1112\u1161\u11AB"), 2);  // the same syllable in letters
  EXPECT_EQ(DisplayWidth("e\u0301"), 1);
  EXPECT_EQ(DisplayWidth("\U0001F680"), 2);
  EXPECT_EQ(DisplayWidth("a\u200Db"), 2);
  EXPECT_EQ(DisplayWidth("\xff"), 1);
  EXPECT_EQ(DisplayWidth(""), 0);
}

TEST(DisplayWidth, FitColumnsGivesExactlyThatManyColumns) {
  EXPECT_EQ(FitColumns("ab", 4), "ab  ");
  EXPECT_EQ(FitColumns("abcd", 4), "abcd");
  EXPECT_EQ(FitColumns("abcde", 4), "abc…");
  EXPECT_EQ(FitColumns("你好吗", 4), "你… ");
  EXPECT_EQ(FitColumns("abc", 1), "…");
  EXPECT_EQ(FitColumns("abc", 0), "");
  for (int n = 0; n < 12; ++n) EXPECT_EQ(DisplayWidth(FitColumns("a你e\u0301好b你", n)), n);
}

}  // namespace
}  // namespace tandem::server
