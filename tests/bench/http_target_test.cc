#include "bench/client/http_target.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace tandem::bench {
namespace {

TEST(HttpTarget, BaseUrlsOfEveryKindLeadToTheSamePlace) {
  for (const char* url : {"http://127.0.0.1:8080", "http://127.0.0.1:8080/",
                          "http://127.0.0.1:8080/v1", "http://127.0.0.1:8080/v1/"}) {
    EXPECT_EQ(ParseTarget(url, "").url(), "http://127.0.0.1:8080") << url;
  }
  EXPECT_EQ(ParseTarget("http://host/gateway/v1", "").url(), "http://host:80/gateway");
  EXPECT_EQ(ParseTarget("http://[::1]:99", "").host, "::1");
  EXPECT_EQ(ParseTarget("http://[::1]:99", "").port, "99");
}

TEST(HttpTarget, UrlsAndKeysThatCannotBeAreRefused) {
  for (const char* url : {"", "127.0.0.1:8080", "https://host", "http://", "http://:80",
                          "http://host:", "http://host:http", "http://[::1", "http://ho st:80",
                          "http://host:80/a\r\nX: y"}) {
    EXPECT_THROW(ParseTarget(url, ""), Error) << url;
  }
  EXPECT_THROW(ParseTarget("http://host", "key\r\nX: y"), Error);
}

TEST(HttpTarget, ARequestSaysWhatItMust) {
  const HttpTarget target = ParseTarget("http://host:81/v1", "secret");

  EXPECT_EQ(target.Request("POST", "/v1/completions", "{}", true),
            "POST /v1/completions HTTP/1.1\r\nHost: host:81\r\nAuthorization: Bearer secret\r\n"
            "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(ParseTarget("http://[::1]:81", "").Request("GET", "/v1/models", "", false),
            "GET /v1/models HTTP/1.1\r\nHost: [::1]:81\r\nConnection: close\r\n\r\n");
}

TEST(HttpTarget, AServerThatIsNotThereIsUnavailable) {
  try {
    Ask(ParseTarget("http://127.0.0.1:1", ""), "GET", "/", "", 5);
    FAIL() << "nobody should answer on port 1";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  }
}

}  // namespace
}  // namespace tandem::bench
