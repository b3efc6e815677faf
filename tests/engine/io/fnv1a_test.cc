#include "engine/io/fnv1a.h"

#include <gtest/gtest.h>

namespace tandem::engine {
namespace {

// The published vectors of 64 bits.
TEST(Fnv1a, GivesThePublishedValues) {
  EXPECT_EQ(Fnv1a::Of(""), 0xcbf29ce484222325u);
  EXPECT_EQ(Fnv1a::Of("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(Fnv1a::Of("foobar"), 0x85944171f73967e8u);
}

TEST(Fnv1a, TakesPiecesAsOneText) {
  Fnv1a hash;
  hash.AddBytes("foo");
  hash.AddBytes("bar");
  EXPECT_EQ(hash.value(), Fnv1a::Of("foobar"));
  hash.Add(0xff);
  EXPECT_EQ(hash.value(), Fnv1a::Of("foobar\xff"));
}

}  // namespace
}  // namespace tandem::engine
