#include "server/http/request_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <type_traits>
#include <vector>

namespace tandem::server {
namespace {

const HttpOptions kDefaults{};

// The parser keeps a reference: one copy of the options serves all connections.
static_assert(!std::is_constructible_v<RequestParser, HttpOptions>);

// The parser's result, as text, for bytes that arrive in random pieces.
std::string Outcome(const std::string& bytes, std::mt19937& random, size_t max_piece) {
  RequestParser parser{kDefaults};
  std::string out;
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t n = std::min(bytes.size() - at, 1 + random() % max_piece);
    parser.Append(std::string_view(bytes).substr(at, n));
    at += n;
    for (bool more = true; more;) {
      auto result = parser.Next();
      if (const Request* request = std::get_if<Request>(&result)) {
        out += request->method + " " + request->path + " [" + request->body + "]\n";
      } else if (const Refusal* refusal = std::get_if<Refusal>(&result)) {
        out += std::to_string(refusal->status) + "\n";
      } else if (std::holds_alternative<RequestParser::NeedMore>(result)) {
        more = false;
      }
    }
  }
  return out;
}

TEST(RequestParser, GivesTheSameRequestsHoweverTheBytesAreCut) {
  const std::string bytes =
      "\r\nGET /a?b=%20c HTTP/1.1\r\nHost: x\r\n\r\n"
      "POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345"
      "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5;x=y\r\nabcde\r\n1\r\nf\r\n0\r\nT: v\r\n\r\n"
      "DELETE /d HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
      "GET /e HTTP/9.1\r\nHost: x\r\n\r\nGET /never HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string expected = "GET /a []\nPOST /b [12345]\nPOST /c [abcdef]\nDELETE /d []\n400\n";

  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    ASSERT_EQ(Outcome(bytes, random, 1 + seed % 40), expected) << "seed " << seed;
  }
}

// RFC 9110 8.6 allows either; we refuse only lengths that differ.
TEST(RequestParser, TheSameLengthTwiceIsOneLength) {
  std::mt19937 random(1);
  const std::string head = "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: ";
  const std::string rest = "\r\n\r\nabcGET /b HTTP/1.1\r\nHost: x\r\n\r\n";

  EXPECT_EQ(Outcome(head + "3" + rest, random, 100), "POST /a [abc]\nGET /b []\n");
  for (const char* other : {"4", "03", "+3", "3, 3", "3,3", ""}) {
    EXPECT_EQ(Outcome(head + other + rest, random, 100), "400\n") << other;
  }
}

TEST(RequestParser, SurvivesRandomDamage) {
  const std::string good =
      "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n";
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::string bytes = good + good;
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    SCOPED_TRACE(seed);

    const std::string whole = Outcome(bytes, random, bytes.size());
    const std::string cut = Outcome(bytes, random, 3);

    EXPECT_EQ(whole, cut);
  }
}

TEST(RequestParser, AsksForTheBodyOnlyWhenTheClientWaits) {
  RequestParser parser{kDefaults};
  const std::string head =
      "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";

  parser.Append(head);
  EXPECT_TRUE(std::get<RequestParser::HeadReady>(parser.Next()).awaits_continue);
  EXPECT_TRUE(std::holds_alternative<RequestParser::NeedMore>(parser.Next()));
  parser.Append("ab" + head + "cd");

  EXPECT_EQ(std::get<Request>(parser.Next()).body, "ab");
  EXPECT_EQ(std::get<Request>(parser.Next()).body, "cd");
}

TEST(RequestParser, ShowsTheHeadOfABodyThatIsStillOnTheWay) {
  RequestParser parser{kDefaults};

  parser.Append("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n1");
  EXPECT_FALSE(std::get<RequestParser::HeadReady>(parser.Next()).awaits_continue);
  EXPECT_EQ(parser.head().path, "/a");
  EXPECT_TRUE(std::holds_alternative<RequestParser::NeedMore>(parser.Next()));
  parser.Append("2");

  EXPECT_EQ(std::get<Request>(parser.Next()).body, "12");
}

TEST(RequestParser, ADroppedBodyIsReadToItsEnd) {
  RequestParser parser{kDefaults};
  const std::string rest = "GET /next HTTP/1.1\r\nHost: x\r\n\r\n";
  for (const std::string framing : {"Content-Length: 5\r\n\r\n12345",
                                    "Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n"}) {
    parser.Append("POST /dropped HTTP/1.1\r\nHost: x\r\n" + framing.substr(0, framing.size() - 1));
    ASSERT_TRUE(std::holds_alternative<RequestParser::HeadReady>(parser.Next()));
    parser.DropBody();
    parser.Append(framing.substr(framing.size() - 1) + rest);

    const Request dropped = std::get<Request>(parser.Next());
    const Request next = std::get<Request>(parser.Next());

    EXPECT_EQ(dropped.path + dropped.body, "/dropped");
    EXPECT_EQ(next.path, "/next");
  }
}

TEST(RequestParser, ADroppedBodyHasTheSameLimits) {
  HttpOptions options;
  options.max_body_bytes = 8;
  RequestParser parser(options);

  parser.Append("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  ASSERT_TRUE(std::holds_alternative<RequestParser::HeadReady>(parser.Next()));
  parser.DropBody();
  parser.Append("5\r\n12345\r\n4\r\n");

  EXPECT_EQ(std::get<Refusal>(parser.Next()).status, 413);
}

TEST(RequestParser, AHostIsOneHost) {
  for (const char* host : {"x", "127.0.0.1:8080", "[::1]:80", "", "a_b.example"}) {
    RequestParser parser{kDefaults};
    parser.Append("GET / HTTP/1.1\r\nHost: " + std::string(host) + "\r\n\r\n");
    EXPECT_TRUE(std::holds_alternative<Request>(parser.Next())) << host;
  }
  for (const char* host : {"x y", "x, y", "x/y", "u@x", "x\"", "x\xc3\xa9"}) {
    RequestParser parser{kDefaults};
    parser.Append("GET / HTTP/1.1\r\nHost: " + std::string(host) + "\r\n\r\n");
    EXPECT_TRUE(std::holds_alternative<Refusal>(parser.Next())) << host;
  }
}

TEST(RequestParser, EmptyLinesAloneAreNoClient) {
  RequestParser parser{kDefaults};
  for (int i = 0; i < 8; ++i) parser.Append("\r\n");
  EXPECT_TRUE(std::holds_alternative<RequestParser::NeedMore>(parser.Next()));

  parser.Append("\r\n");

  EXPECT_EQ(std::get<Refusal>(parser.Next()).status, 400);
}

TEST(RequestParser, KnowsWhoseRequestItRefuses) {
  RequestParser parser{kDefaults};

  parser.Append(
      "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\nX-Request-Id: me\r\n\r\n");

  EXPECT_EQ(std::get<Refusal>(parser.Next()).status, 413);
  EXPECT_EQ(parser.head().id, "me");
  EXPECT_EQ(parser.head().path, "/v1/x");
}

}  // namespace
}  // namespace tandem::server
