#include "server/terminal/key_decoder.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace tandem::server {
namespace {

using Kind = Key::Kind;

std::vector<Key> Decode(KeyDecoder& decoder, std::string_view bytes) {
  std::vector<Key> keys;
  for (const char byte : bytes) {
    if (const auto key = decoder.Feed(byte)) keys.push_back(*key);
  }
  return keys;
}

std::vector<Kind> KindsOf(std::string_view bytes) {
  KeyDecoder decoder;
  std::vector<Kind> kinds;
  for (const Key& key : Decode(decoder, bytes)) kinds.push_back(key.kind);
  return kinds;
}

std::string TextOf(std::string_view bytes) {
  KeyDecoder decoder;
  std::string text;
  for (const Key& key : Decode(decoder, bytes)) {
    if (key.kind == Kind::kText) text += key.text;
  }
  return text;
}

using Kinds = std::vector<Kind>;

TEST(KeyDecoder, TheSequencesOfXtermAndOfOlderTerminalsAreKeys) {
  EXPECT_EQ(KindsOf("\x1b[A\x1b[B\x1b[C\x1b[D"),
            (Kinds{Kind::kUp, Kind::kDown, Kind::kRight, Kind::kLeft}));
  EXPECT_EQ(KindsOf("\x1bOA\x1bOH\x1bOF"), (Kinds{Kind::kUp, Kind::kHome, Kind::kEnd}));
  EXPECT_EQ(KindsOf("\x1b[H\x1b[F\x1b[1~\x1b[4~\x1b[7~\x1b[8~\x1b[3~"),
            (Kinds{Kind::kHome, Kind::kEnd, Kind::kHome, Kind::kEnd, Kind::kHome, Kind::kEnd,
                   Kind::kDelete}));
  EXPECT_EQ(KindsOf("\x1b[1;5C\x1b[1;5D\x1b"
                    "b\x1b"
                    "f\x1b"
                    "d\x1b\x7f\x1b\r"),
            (Kinds{Kind::kWordRight, Kind::kWordLeft, Kind::kWordLeft, Kind::kWordRight,
                   Kind::kKillWordRight, Kind::kKillWordLeft, Kind::kNewLine}));
}

TEST(KeyDecoder, ControlCharactersAreTheKeysOfEmacs) {
  EXPECT_EQ(KindsOf("\x01\x05\x02\x06\x10\x0e"),
            (Kinds{Kind::kHome, Kind::kEnd, Kind::kLeft, Kind::kRight, Kind::kUp, Kind::kDown}));
  EXPECT_EQ(KindsOf("\x0b\x15\x17\x19\x0c"),
            (Kinds{Kind::kKillToEnd, Kind::kKillToBegin, Kind::kKillWordLeft, Kind::kYank,
                   Kind::kClearScreen}));
  EXPECT_EQ(KindsOf("\x03\x04\x1a\r\n\x08\x7f"),
            (Kinds{Kind::kInterrupt, Kind::kEndOfInput, Kind::kSuspend, Kind::kEnter, Kind::kEnter,
                   Kind::kBackspace, Kind::kBackspace}));
}

TEST(KeyDecoder, UnknownSequencesAndInvalidBytesAreDropped) {
  EXPECT_EQ(TextOf("a\x1b[38;5;1mb\x1b[Zc\x1b[<0;1;1Md"), "abcd");
  EXPECT_EQ(TextOf("\xff\xc3(\xe4\xbd\xa0\xed\xa0\x80x"), "(你x");
  EXPECT_EQ(TextOf(std::string("\x1b[") + std::string(1000, '1') + "~x"),
            std::string(1000 - 33, '1') + "~x");
}

TEST(KeyDecoder, APasteIsOneKeyWhoseControlsCannotAct) {
  KeyDecoder decoder;
  const auto keys = Decode(decoder, "\x1b[200~one\r\ntwo\rthree\n\t\x03\x04\x1b[A你\xff\x1b[201~z");

  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].kind, Kind::kPaste);
  EXPECT_EQ(keys[0].text, "one\ntwo\nthree\n\t[A你");
  EXPECT_EQ(keys[1].text, "z");
}

TEST(KeyDecoder, APasteIsBoundedAndItsEndIsStillFound) {
  KeyDecoder decoder;
  const std::string body(KeyDecoder::kMaxPasteBytes + 5000, 'x');
  const auto keys = Decode(decoder, "\x1b[200~" + body + "\x1b[201~q");

  ASSERT_EQ(keys.size(), 2u);
  EXPECT_LE(keys[0].text.size(), KeyDecoder::kMaxPasteBytes + 16);
  EXPECT_GE(keys[0].text.size(), KeyDecoder::kMaxPasteBytes);
  EXPECT_EQ(keys[1].text, "q");
}

}  // namespace
}  // namespace tandem::server
