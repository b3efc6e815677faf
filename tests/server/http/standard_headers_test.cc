#include "server/http/standard_headers.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace tandem::server {
namespace {

std::map<std::string, std::string> HeadersOf(int status, Headers own = {}) {
  Request request;
  request.id = "id";
  Response response;
  response.status = status;
  response.headers = std::move(own);
  AddStandardHeaders(HttpOptions(), request, response);
  return {response.headers.begin(), response.headers.end()};
}

TEST(StandardHeaders, AConflictIsNotRetried) {
  EXPECT_EQ(HeadersOf(409).at("x-should-retry"), "false");
  EXPECT_FALSE(HeadersOf(400).contains("x-should-retry"));
}

TEST(StandardHeaders, BusyAnswersSayTheSameInSecondsAndMilliseconds) {
  for (const int status : {429, 503}) {
    EXPECT_EQ(HeadersOf(status).at("retry-after"), "1");
    EXPECT_EQ(HeadersOf(status).at("retry-after-ms"), "1000");
    EXPECT_EQ(HeadersOf(status, {{"retry-after", "7"}}).at("retry-after-ms"), "7000");
  }
  EXPECT_FALSE(HeadersOf(500).contains("retry-after"));
}

TEST(StandardHeaders, AValueCannotStartAHeaderOfItsOwn) {
  Response response;
  response.headers = {{"x-ignored-params", "a\r\nset-cookie: b\x7f"}};

  const std::string head = SerializeHead(response, 0, true, true);

  EXPECT_EQ(head.find("\r\nset-cookie"), std::string::npos);
  EXPECT_NE(head.find("x-ignored-params: a  set-cookie: b \r\n"), std::string::npos);
}

}  // namespace
}  // namespace tandem::server
