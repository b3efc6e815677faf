#include "server/http/request_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace tandem::server {
namespace {

// What a parser makes of bytes that arrive in the given pieces, as text.
std::string Outcome(const std::string& bytes, std::mt19937& random, size_t max_piece) {
  RequestParser parser{HttpOptions()};
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
  RequestParser parser{HttpOptions()};
  const std::string head =
      "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";

  parser.Append(head);
  EXPECT_TRUE(std::holds_alternative<RequestParser::AwaitsContinue>(parser.Next()));
  EXPECT_TRUE(std::holds_alternative<RequestParser::NeedMore>(parser.Next()));
  parser.Append("ab" + head + "cd");

  EXPECT_EQ(std::get<Request>(parser.Next()).body, "ab");
  EXPECT_EQ(std::get<Request>(parser.Next()).body, "cd");
}

}  // namespace
}  // namespace tandem::server
