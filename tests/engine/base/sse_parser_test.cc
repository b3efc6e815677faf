#include "engine/base/sse_parser.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace tandem {
namespace {

using Events = std::vector<std::pair<std::string, std::string>>;  // type, data

Events ParseEvents(const std::string& bytes, size_t size) {
  SseParser parser;
  Events events;
  for (size_t at = 0; at < bytes.size(); at += size) {
    parser.Feed(std::string_view(bytes).substr(at, size), [&](const SseParser::Event& event) {
      events.emplace_back(event.type, event.data);
    });
  }
  return events;
}

TEST(SseParser, EventsAreTheSameForEveryLineEndInPiecesOfEverySize) {
  const Events want = {{"message", "{\"a\":1}"},
                       {"message", "two\nlines"},
                       {"error", "named"},
                       {"message", "[DONE]"}};
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    std::string bytes;
    for (const char* line : {"data: {\"a\":1}", "", ": a comment", "data: two", "data:lines",
                             "id: 7", "retry: 5", "", "", "event: error", "data: named", "", ":",
                             "event: without data", "", "data: [DONE]", ""}) {
      bytes += line + end;
    }
    for (size_t size = 1; size <= bytes.size(); ++size) {
      EXPECT_EQ(ParseEvents(bytes, size), want) << size;
    }
  }
}

TEST(SseParser, AnEventWithoutItsEmptyLineIsNone) {
  EXPECT_EQ(ParseEvents("data: a\n\ndata: b\n", 100), (Events{{"message", "a"}}));
  EXPECT_EQ(ParseEvents("data: a\n\ndata: b", 1), (Events{{"message", "a"}}));
}

TEST(SseParser, OnlyOneSpaceAfterTheColonIsLeftOut) {
  EXPECT_EQ(ParseEvents("data:  x \n\n", 2), (Events{{"message", " x "}}));
}

TEST(SseParser, AByteOrderMarkIsLeftOut) {
  EXPECT_EQ(ParseEvents("\xef\xbb\xbf"
                        "data: x\n\n",
                        1),
            (Events{{"message", "x"}}));
}

TEST(SseParser, DataWithoutAColonIsAnEmptyLineOfData) {
  EXPECT_EQ(ParseEvents("data\n\ndata\ndata\n\n", 3), (Events{{"message", ""}, {"message", "\n"}}));
}

TEST(SseParser, AnEndlessLineOrEventIsRefused) {
  const SseParser::Sink ignore = [](const SseParser::Event&) {};
  SseParser line(10);
  line.Feed("data: abcd", ignore);
  EXPECT_THROW(line.Feed("e", ignore), Error);
  SseParser event(10);
  event.Feed("data: abc\ndata: abc\n", ignore);
  EXPECT_THROW(event.Feed("data: abc\n", ignore), Error);
}

}  // namespace
}  // namespace tandem
