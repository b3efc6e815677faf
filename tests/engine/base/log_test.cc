#include "engine/base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

using namespace std::string_literals;

TEST(Log, NothingThatALineHoldsCanEndIt) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string hostile = "a" + std::string(1, static_cast<char>(byte)) + "b";
    for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
      const std::string line = FormatEvent(format, "request", {{"path", hostile}});
      for (const char c : line) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << byte;
    }
  }
}

TEST(Log, QuotesAndFieldsCannotBeForged) {
  EXPECT_EQ(
      FormatEvent(LogFormat::kText, "request", {{"path", "/a status=200"s}, {"n", int64_t{3}}}),
      "request path=\"/a status=200\" n=3");
  EXPECT_EQ(FormatEvent(LogFormat::kText, "request", {{"path", "x\" admin=\"y"s}}),
            "request path=\"x\\\" admin=\\\"y\"");
  EXPECT_EQ(FormatEvent(LogFormat::kJson, "request", {{"path", "x\",\"a\":\"\\"s}, {"ms", 1.5}}),
            R"("event":"request","path":"x\",\"a\":\"\\","ms":1.500)");
  EXPECT_EQ(FormatEvent(LogFormat::kText, "request", {{"route", "/v1/models/{id+}"s}, {"e", ""s}}),
            "request route=/v1/models/{id+} e=\"\"");
}

TEST(Log, LineSeparatorsOfUnicodeAreEscapedToo) {
  EXPECT_EQ(EscapeJson("a\xc2\x85z\xe2\x80\xa8\xe2\x80\xa9"), "a\\u0085z\\u2028\\u2029");
  EXPECT_EQ(EscapeJson("\x1b[31m\n"), "\\u001b[31m\\n");
}

TEST(Log, OnlyUtf8Leaves) {
  EXPECT_EQ(EscapeJson("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(EscapeJson("a\xffz"), "a\xef\xbf\xbdz");
  EXPECT_EQ(EscapeJson("\xc0\xaf"), "\xef\xbf\xbd\xef\xbf\xbd");          // overlong
  EXPECT_EQ(EscapeJson("\xed\xa0\x80").find('\xed'), std::string::npos);  // a surrogate
  EXPECT_EQ(EscapeJson("\xe2\x82"), "\xef\xbf\xbd\xef\xbf\xbd");          // cut off
}

}  // namespace
}  // namespace tandem
