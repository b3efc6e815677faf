#include "server/http/router.h"

#include <gtest/gtest.h>

#include "engine/base/url.h"

namespace tandem::server {
namespace {

Router TestRouter() {
  const Handler none = [](Request, ResponseWriter) {};
  return Router({{"GET", "/", none},
                 {"GET", "/v1/models", none},
                 {"GET", "/v1/models/{id+}", none},
                 {"DELETE", "/v1/models/{id+}", none},
                 {"GET", "/jobs/{id}", none},
                 {"POST", "/jobs/{id}/cancel", none},
                 {"GET", "/files/{id+}/content", none}});
}

TEST(Router, MatchesIdsWithSlashesOnlyWhereThePatternAllowsThem) {
  const Router router = TestRouter();

  EXPECT_EQ(router.Find("GET", "/v1/models/a/b:c").params.at("id"), "a/b:c");
  EXPECT_EQ(router.Find("GET", "/files/a/b/content").params.at("id"), "a/b");
  EXPECT_EQ(router.Find("GET", "/jobs/a/b").route, nullptr);
  EXPECT_TRUE(router.Find("GET", "/jobs/a/b").allow.empty());
}

TEST(Router, NamesAllMethodsOfAPath) {
  const Router router = TestRouter();

  const Router::Match match = router.Find("PUT", "/v1/models/x");

  EXPECT_EQ(match.route, nullptr);
  EXPECT_EQ(match.allow, "GET, HEAD, DELETE, OPTIONS");
  EXPECT_EQ(router.Find("GET", "/jobs/a/cancel").allow, "POST, OPTIONS");
}

TEST(Router, ATrailingSlashIsAnotherPath) {
  const Router router = TestRouter();

  EXPECT_NE(router.Find("GET", "/").route, nullptr);
  EXPECT_NE(router.Find("HEAD", "/v1/models").route, nullptr);
  EXPECT_EQ(router.Find("GET", "/v1/models/").route, nullptr);
  EXPECT_EQ(router.Find("POST", "/jobs/a/cancel/").route, nullptr);
}

TEST(Url, DecodesOnceAndRefusesPathsThatMeanSomethingElse) {
  EXPECT_EQ(ParseRequestTarget("/a%2Fb?x=1%202&flag&y=")->path, "/a/b");
  EXPECT_EQ(ParseRequestTarget("/a%2525")->path, "/a%25");
  EXPECT_EQ(
      ParseRequestTarget("/a?x=1%202&flag&y=")->query,
      (std::vector<std::pair<std::string, std::string>>{{"x", "1 2"}, {"flag", ""}, {"y", ""}}));
  for (const char* bad : {"", "a", "/..", "/a/../b", "/a/./b", "//", "/a//b", "/%00", "/%2e%2e",
                          "/a%2F..", "/%", "/%g0", "/a%0d%0ab", "/a\\b"}) {
    EXPECT_FALSE(ParseRequestTarget(bad)) << bad;
  }
}

}  // namespace
}  // namespace tandem::server
