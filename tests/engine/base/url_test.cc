#include "engine/base/url.h"

#include <gtest/gtest.h>

namespace tandem::server {
namespace {

TEST(Url, IsTakenApart) {
  const auto url = ParseUrl("HTTPS://User:p%40ss@Hub.Example.com:8443/a%20b?q=1#part");

  ASSERT_TRUE(url.has_value());
  EXPECT_TRUE(url->is_https);
  EXPECT_EQ(url->user_info, "User:p%40ss");
  EXPECT_EQ(url->host, "hub.example.com");
  EXPECT_EQ(url->port, 8443);
  EXPECT_EQ(url->target, "/a%20b?q=1");
  EXPECT_EQ(url->Authority(), "hub.example.com:8443");
  EXPECT_EQ(url->Display(), "https://hub.example.com:8443/a%20b");
}

TEST(Url, HasThePortOfItsScheme) {
  EXPECT_EQ(ParseUrl("http://h")->port, 80);
  EXPECT_EQ(ParseUrl("https://h")->port, 443);
  EXPECT_EQ(ParseUrl("https://h?x")->target, "/?x");
  EXPECT_EQ(ParseUrl("https://h:443/")->Authority(), "h");
  EXPECT_EQ(ParseUrl("http://[::1]:80/")->Authority(), "[::1]");
  EXPECT_EQ(ParseUrl("http://[::1]:81/")->Authority(), "[::1]:81");
  EXPECT_EQ(ParseUrl("http://[::1]/")->host, "::1");
}

TEST(Url, IsNotWhatCouldMeanSomethingElse) {
  for (const char* text :
       {"", "h", "//h/", "ftp://h/", "file:///etc/passwd", "http://", "http:///a", "http://h:0/",
        "http://h:65536/", "http://h:8a/", "http://h:/a b", "http://h\r\nX: y/", "http://h\\x/",
        "http://h%00/", "http://[::1/", "http://[h]/", "http://h/\x80", "http://a,b/"}) {
    EXPECT_FALSE(ParseUrl(text).has_value()) << text;
  }
  EXPECT_FALSE(ParseUrl("http://h/" + std::string(20000, 'a')).has_value());
}

TEST(Url, TheHostIsBehindTheLastAt) {
  EXPECT_EQ(ParseUrl("https://hub.example@evil.example/")->host, "evil.example");
  EXPECT_EQ(ParseUrl("https://evil.example/@hub.example")->host, "evil.example");
  EXPECT_EQ(ParseUrl("https://evil.example?@hub.example/")->host, "evil.example");
}

TEST(Url, ReferencesAreResolved) {
  const Url base = *ParseUrl("https://hub.example:8443/a/b?q=1");
  const struct {
    const char* reference;
    const char* origin;
    const char* target;
  } cases[] = {
      {"http://cdn.example/x?y", "http://cdn.example", "/x?y"},
      {"//cdn.example/x", "https://cdn.example", "/x"},
      {"/x/y", "https://hub.example:8443", "/x/y"},
      {"c", "https://hub.example:8443", "/a/c"},
      {"?z", "https://hub.example:8443", "/a/b?z"},
      {"/login?next=http://x/", "https://hub.example:8443", "/login?next=http://x/"},
  };
  for (const auto& c : cases) {
    const auto url = ResolveUrl(base, c.reference);
    ASSERT_TRUE(url.has_value()) << c.reference;
    EXPECT_EQ(url->Origin(), c.origin) << c.reference;
    EXPECT_EQ(url->target, c.target) << c.reference;
  }
  EXPECT_FALSE(ResolveUrl(base, "ftp://h/").has_value());
  EXPECT_FALSE(ResolveUrl(base, "/a\r\nX: y").has_value());
}

TEST(Url, OriginsDifferByAnyOfThree) {
  const Url url = *ParseUrl("https://h/a");
  EXPECT_TRUE(IsSameOrigin(url, *ParseUrl("https://H:443/b")));
  EXPECT_FALSE(IsSameOrigin(url, *ParseUrl("http://h:443/a")));
  EXPECT_FALSE(IsSameOrigin(url, *ParseUrl("https://h:444/a")));
  EXPECT_FALSE(IsSameOrigin(url, *ParseUrl("https://h.evil/a")));
}

TEST(Url, EncodingIsUndoneByDecoding) {
  const std::string text = "refs/pr/1 ä%\n";
  EXPECT_EQ(PercentEncode(text), "refs%2Fpr%2F1%20%C3%A4%25%0A");
  EXPECT_EQ(PercentDecode(PercentEncode(text)), text);
}

}  // namespace
}  // namespace tandem::server
