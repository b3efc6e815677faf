#include "server/wire/utf8.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(CountCharacters("aé€😀"), 4);
}

}  // namespace
}  // namespace tandem::server
