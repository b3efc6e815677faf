#include "server/terminal/visible_text.h"

#include <gtest/gtest.h>

namespace tandem::server {
namespace {

std::string InPiecesOf(size_t n, std::string_view text) {
  VisibleStream stream;
  std::string out;
  for (size_t i = 0; i < text.size(); i += n) out += stream.Feed(text.substr(i, n));
  return out + stream.Finish();
}

TEST(VisibleText, KeepsPlainTextOfEveryScript) {
  const std::string text = "a\tb\nŁódź, 你好, नमस्ते, \U0001F469\u200D\U0001F680, می\u200Cخواهم";
  EXPECT_EQ(VisibleText(text), text);
}

TEST(VisibleText, ShowsTheFirstByteOfEveryEscapeSequence) {
  EXPECT_EQ(VisibleText("\x1b[2J\x1b]0;title\x07\x1bP1$r\x1b\\"),
            "\u241B[2J\u241B]0;title\u2407\u241BP1$r\u241B\\");
  EXPECT_EQ(VisibleText("\x1b]8;;http://x\x1b\\link"), "\u241B]8;;http://x\u241B\\link");
}

TEST(VisibleText, LeavesNoControlCharacterOfC0OrC1) {
  std::string text;
  for (int c = 0; c < 0x20; ++c) text.push_back(static_cast<char>(c));
  text += "\x7f";
  for (int c = 0x80; c < 0xA0; ++c) text += {static_cast<char>(0xC2), static_cast<char>(c)};
  for (const char c : VisibleText(text)) {
    EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t');
  }
  EXPECT_EQ(VisibleText(text).find("\xC2"), std::string::npos);
  EXPECT_EQ(VisibleText("\u009B2J"), "<U+009B>2J");
}

// Terminals that are not set to UTF-8 take these bytes for C1 controls.
TEST(VisibleText, ReplacesBareC1BytesAndOtherBytesThatAreNotUtf8) {
  EXPECT_EQ(VisibleText("\x9b"
                        "2J\xff\xc3"),
            "\uFFFD2J\uFFFD\uFFFD");
  EXPECT_EQ(VisibleText("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");
}

TEST(VisibleText, ShowsBidirectionalControlsLineSeparatorsAndTags) {
  EXPECT_EQ(VisibleText("user\u202Etxt.exe"), "user<U+202E>txt.exe");
  EXPECT_EQ(VisibleText("\u2066a\u2069\u200F\u061C"), "<U+2066>a<U+2069><U+200F><U+061C>");
  EXPECT_EQ(VisibleText("a\u2028b\uFEFF"), "a<U+2028>b<U+FEFF>");
  EXPECT_EQ(VisibleText("\U000E0041"), "<U+E0041>");
}

TEST(VisibleText, ACarriageReturnCannotOverwriteTheLine) {
  EXPECT_EQ(VisibleText("safe\rrm -rf"), "safe\u240Drm -rf");
  EXPECT_EQ(VisibleText("one\r\ntwo\r\n"), "one\ntwo\n");
  EXPECT_EQ(VisibleText("end\r"), "end\u240D");
}

TEST(VisibleText, PiecesOfAnySizeGiveTheSameText) {
  const std::string text = "ab\x1b[31m\r\n\r\xff é 你好 \U0001F680 \u202E\u009B end\xe4\xbd";
  for (size_t n = 1; n <= text.size(); ++n) EXPECT_EQ(InPiecesOf(n, text), VisibleText(text)) << n;
}

TEST(VisibleLine, IsOneLineOfBoundedLength) {
  EXPECT_EQ(VisibleLine("a\nb\tc\rd"), "a\u240Ab\u2409c\u240Dd");
  EXPECT_EQ(VisibleLine("abcdef", 3), "abc…");
  EXPECT_EQ(VisibleLine("abé", 3), "ab…");
  EXPECT_EQ(VisibleLine("ab\xc3"), "ab\uFFFD");
}

}  // namespace
}  // namespace tandem::server
