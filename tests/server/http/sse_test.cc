#include "server/http/sse.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::server {
namespace {

TEST(Sse, DataIsOneLineAndAnEmptyOne) { EXPECT_EQ(SseData("{}"), "data: {}\n\n"); }

TEST(Sse, EveryLineOfTheDataGetsItsField) {
  EXPECT_EQ(SseData("a\n\nb"), "data: a\ndata: \ndata: b\n\n");
  EXPECT_EQ(SseData("a\n"), "data: a\ndata: \n\n");
  EXPECT_EQ(SseData(""), "data: \n\n");
}

TEST(Sse, CarriageReturnsNeverReachTheWire) {
  EXPECT_EQ(SseData("\ra\r\nb\r\r"), "data:  a \ndata: b  \n\n");
}

TEST(Sse, NamesAndCommentsStayOnOneLine) {
  EXPECT_EQ(SseNamed("log\r\ndata: x", "y"), "event: log  data: x\ndata: y\n\n");
  EXPECT_EQ(SseComment("\nping\n"), ":  ping \n\n");
}

TEST(JsonLine, StaysOneLineForEveryReader) {
  EXPECT_EQ(JsonLine("{}"), "{}\n");
  EXPECT_EQ(JsonLine("{\n\"a\":\r1}"), "{ \"a\": 1}\n");
  EXPECT_EQ(JsonLine("\"\xc2\x85\xe2\x80\xa8\xe2\x80\xa9é\""), "\"\\u0085\\u2028\\u2029é\"\n");
}

}  // namespace
}  // namespace tandem::server
