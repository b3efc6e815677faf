#include "server/http/syntax/byte_range.h"

#include <gtest/gtest.h>

namespace tandem::server {
namespace {

using Kind = RangeAnswer::Kind;

void ExpectPart(std::string_view header, ByteRange range) {
  const RangeAnswer answer = ParseRange(header, 10);
  EXPECT_EQ(answer.kind, Kind::kPart) << header;
  EXPECT_EQ(answer.range, range) << header;
}

TEST(ByteRange, OnePartOfAFile) {
  ExpectPart("bytes=0-0", {0, 1});
  ExpectPart("bytes=2-5", {2, 4});
  ExpectPart("bytes=2-", {2, 8});
  ExpectPart("bytes=2-99999999999999999999999", {2, 8});
  ExpectPart("bytes=-3", {7, 3});
  ExpectPart("bytes=-99", {0, 10});
}

TEST(ByteRange, BeyondTheEndCannotBeSatisfied) {
  for (const char* header :
       {"bytes=10-", "bytes=10-12", "bytes=-0", "bytes=99999999999999999999-"}) {
    EXPECT_EQ(ParseRange(header, 10).kind, Kind::kUnsatisfiable) << header;
  }
}

TEST(ByteRange, WhatCannotBeReadIsTheWhole) {
  for (const char* header : {"", "bytes", "bytes=", "bytes=-", "bytes=5-2", "bytes=0-1,3-4",
                             "bytes=a-b", "lines=1-2", "bytes=+1-2", "bytes= 1-2", "bytes=1"}) {
    EXPECT_EQ(ParseRange(header, 10).kind, Kind::kWhole) << header;
  }
}

}  // namespace
}  // namespace tandem::server
