#include "training/observe/event_file.h"

#include <gtest/gtest.h>

namespace tandem::training {
namespace {

// Bytes of the protocol buffer encoding, written by hand: tag, wire type, value.
TEST(EventFile, AnEventIsTheMessageOfTensorBoard) {
  const std::string expected(
      "\x09\x00\x00\x00\x00\x00\x00\xf8\x3f"  // 1, fixed64: 1.5
      "\x10\xac\x02"                          // 2, varint: 300
      "\x2a\x0c"                              // 5: summary of 12 bytes
      "\x0a\x0a"                              // 1: value of 10 bytes
      "\x0a\x03\x61/b"                        // 1: tag
      "\x15\x00\x00\x00\x40",                 // 2, fixed32: 2
      26);
  EXPECT_EQ(EncodeEvent({1.5, 300, "", {{"a/b", 2.0f}}}), expected);
}

TEST(EventFile, WhatIsWrittenReadsBack) {
  TensorBoardEvent event{1e9, 123456789, "", {{"learning/loss", 1.25f}, {"x", -3.0f}}};
  TensorBoardEvent read;
  ASSERT_TRUE(DecodeEvent(EncodeEvent(event), &read));
  EXPECT_EQ(read.wall_time, event.wall_time);
  EXPECT_EQ(read.step, event.step);
  EXPECT_EQ(read.scalars, event.scalars);
  EXPECT_FALSE(DecodeEvent(EncodeEvent(event).substr(0, 20), &read));
}

TEST(EventFile, RecordsEndWhereTheyAreDamaged) {
  const std::string file = FrameRecord("one") + FrameRecord("") + FrameRecord("three");
  std::string_view payload;
  std::string_view rest = file;
  ASSERT_TRUE(TakeRecord(&rest, &payload));
  EXPECT_EQ(payload, "one");
  ASSERT_TRUE(TakeRecord(&rest, &payload));
  EXPECT_EQ(payload, "");
  ASSERT_TRUE(TakeRecord(&rest, &payload));
  EXPECT_EQ(payload, "three");
  EXPECT_FALSE(TakeRecord(&rest, &payload));

  const std::string whole = FrameRecord("one");
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] ^= 1;
    rest = damaged;
    EXPECT_FALSE(TakeRecord(&rest, &payload)) << i;
    rest = std::string_view(whole).substr(0, i);
    EXPECT_FALSE(TakeRecord(&rest, &payload)) << i;
  }
}

}  // namespace
}  // namespace tandem::training
