#include "engine/io/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::engine {
namespace {

std::string HexOf(std::string_view text) { return ToHex(Sha256Of(std::as_bytes(std::span(text)))); }

// The examples of FIPS 180-4 and its test vectors.
TEST(Sha256, MatchesPublishedDigests) {
  EXPECT_EQ(HexOf(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HexOf("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HexOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(HexOf(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesGiveTheDigestOfTheWhole) {
  Sha256 hash;
  hash.Update("a");
  hash.Update("");
  hash.Update("bc");

  EXPECT_EQ(ToHex(hash.Finish()), HexOf("abc"));
}

TEST(Sha256, StartsOverAfterFinishAndCanBeMoved) {
  Sha256 hash;
  hash.Update("something else");
  hash.Finish();
  Sha256 moved = std::move(hash);
  moved.Update("abc");

  EXPECT_EQ(ToHex(moved.Finish()), HexOf("abc"));
}

}  // namespace
}  // namespace tandem::engine
