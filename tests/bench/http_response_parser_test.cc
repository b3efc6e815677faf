#include "bench/client/http_response_parser.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace tandem::bench {
namespace {

struct Parsed {
  HttpResponseParser parser;
  std::string body;
  size_t taken = 0;
};

// Feeds `bytes` in pieces of `size`.
Parsed ParseResponse(const std::string& bytes, size_t size) {
  Parsed parsed;
  for (size_t at = 0; at < bytes.size(); at += size) {
    parsed.taken += parsed.parser.Feed(std::string_view(bytes).substr(at, size), parsed.body);
  }
  return parsed;
}

const std::string kChunked =
    "HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n"
    "Transfer-Encoding: chunked\r\n\r\n"
    "5\r\nhello\r\n1B;name=value\r\n, a chunk with \r\n within it\r\n0\r\nTrailer: x\r\n\r\n";

TEST(HttpResponseParser, AChunkedBodyIsTheSameInPiecesOfEverySize) {
  for (size_t size = 1; size <= kChunked.size(); ++size) {
    const Parsed parsed = ParseResponse(kChunked, size);

    ASSERT_TRUE(parsed.parser.done()) << size;
    EXPECT_EQ(parsed.parser.status(), 200);
    EXPECT_TRUE(parsed.parser.is_event_stream());
    EXPECT_TRUE(parsed.parser.keep_alive());
    EXPECT_EQ(parsed.body, "hello, a chunk with \r\n within it") << size;
  }
}

TEST(HttpResponseParser, ALengthEndsTheBodyAndLeavesWhatFollows) {
  const std::string bytes =
      "HTTP/1.1 503 Service Unavailable\r\ncontent-length:4\r\nConnection: "
      "Close\r\n\r\nbusyHTTP/1.1";

  const Parsed parsed = ParseResponse(bytes, bytes.size());

  EXPECT_TRUE(parsed.parser.done());
  EXPECT_EQ(parsed.parser.status(), 503);
  EXPECT_FALSE(parsed.parser.keep_alive());
  EXPECT_FALSE(parsed.parser.is_event_stream());
  EXPECT_EQ(parsed.body, "busy");
  EXPECT_EQ(parsed.taken, bytes.size() - 8);
}

TEST(HttpResponseParser, WithoutALengthTheConnectionEndsTheBody) {
  Parsed parsed = ParseResponse("HTTP/1.1 200 OK\r\n\r\nall of it", 3);

  EXPECT_FALSE(parsed.parser.done());
  EXPECT_TRUE(parsed.parser.EndOfConnection());
  EXPECT_FALSE(parsed.parser.keep_alive());
  EXPECT_EQ(parsed.body, "all of it");
}

TEST(HttpResponseParser, AConnectionThatEndsEarlyLeavesTheResponseUnfinished) {
  for (size_t size = 0; size + 1 < kChunked.size(); ++size) {
    Parsed parsed = ParseResponse(kChunked.substr(0, size), 1000);

    EXPECT_FALSE(parsed.parser.EndOfConnection()) << size;
    EXPECT_EQ(parsed.parser.has_begun(), size > 0);
  }
}

TEST(HttpResponseParser, InterimAnswersAreSkipped) {
  const std::string bytes =
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nContent-Length: 7\r\n\r\n"
      "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
  for (const size_t size : {size_t{1}, size_t{7}, bytes.size()}) {
    const Parsed parsed = ParseResponse(bytes, size);

    EXPECT_TRUE(parsed.parser.done());
    EXPECT_EQ(parsed.parser.status(), 200);
    EXPECT_EQ(parsed.body, "ok");
  }
}

TEST(HttpResponseParser, StatusesWithoutABodyNeedNone) {
  EXPECT_TRUE(ParseResponse("HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n", 5).parser.done());
  EXPECT_TRUE(ParseResponse("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 5).parser.done());
}

TEST(HttpResponseParser, AnOlderVersionClosesUnlessItSaysOtherwise) {
  EXPECT_FALSE(
      ParseResponse("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", 99).parser.keep_alive());
  EXPECT_TRUE(
      ParseResponse("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx", 99)
          .parser.keep_alive());
}

TEST(HttpResponseParser, BareLineFeedsAreLineEnds) {
  const Parsed parsed =
      ParseResponse("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3\nabc\n0\n\n", 1);

  EXPECT_TRUE(parsed.parser.done());
  EXPECT_EQ(parsed.body, "abc");
}

TEST(HttpResponseParser, WhatIsNotHttpIsRefused) {
  const std::string head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string& bytes :
       {std::string("SSH-2.0-OpenSSH\r\n\r\n"), std::string("HTTP/1.1 20x OK\r\n\r\n"),
        std::string("HTTP/1.1 2000 OK\r\n\r\n"), std::string("HTTP/1.1 200 OK\r\nno colon\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"), head + "xyz\r\n",
        head + "\r\n", head + "3\r\nabcdef\r\n", head + "11111111111111111\r\n",
        std::string(100'000, 'x')}) {
    EXPECT_THROW(ParseResponse(bytes, 10), Error) << bytes.substr(0, 60);
  }
}

}  // namespace
}  // namespace tandem::bench
