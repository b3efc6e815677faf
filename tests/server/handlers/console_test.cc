#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/attempt.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/http/response_channel.h"

// Who gets the console, and how its files are sent. tests/console walks it with a browser.

namespace tandem::server {
namespace {

class Console : public testing::Test {
 protected:
  Console()
      : context_{.models = models_,
                 .is_loading = no_,
                 .is_draining = no_,
                 .model_root = {},
                 .base_url = "http://127.0.0.1:8080"} {
    request_.method = "GET";
    request_.remote = "127.0.0.1:41234";
  }

  Response Ask(const std::string& path) {
    const auto channel = std::make_shared<ResponseChannel>(
        1 << 20, [] {}, [](const std::shared_ptr<ResponseChannel>&) {});
    const Router router(AllRoutes(context_));
    const Router::Match match = router.Find("GET", path);
    Request request = request_;
    request.path = path;
    request.path_params = match.params;
    match.route->handler(std::move(request),
                         ResponseWriter(channel, [] { return ResponseWriter::Abandoned(); }));
    return channel->Take().head.value();
  }
  static std::string HeaderOf(const Response& response, std::string_view name) {
    for (const auto& [key, value] : response.headers) {
      if (key == name) return value;
    }
    return "";
  }
  bool Serves() {
    request_.headers = {{"accept", "text/html"}};
    const bool is_page = Ask("/").content_type.starts_with("text/html");
    const auto error = Attempt([&] { EXPECT_EQ(Ask("/console/app.js").status, 200); });
    EXPECT_EQ(is_page, !error);
    return is_page;
  }

  ModelRegistry models_{false};
  std::atomic<bool> no_{false};
  HandlerContext context_;
  Request request_;
};

TEST_F(Console, IsForBrowsersAndTheTextForAllOthers) {
  request_.headers = {{"accept", "text/html,application/xhtml+xml"}};
  const Response page = Ask("/");
  request_.headers = {{"accept", "*/*"}};
  const Response text = Ask("/");

  EXPECT_NE(page.body.find("/console/app.js"), std::string::npos);
  EXPECT_EQ(text.content_type, "text/plain; charset=utf-8");
  EXPECT_NE(text.body.find("open http://127.0.0.1:8080/ in a browser"), std::string::npos);
}

TEST_F(Console, OfAnOpenServerIsOnlyForItsOwnMachine) {
  context_.requires_key = [] { return false; };
  for (const char* remote : {"127.0.0.1:1", "127.8.8.8:2", "::1:3", "::ffff:127.0.0.1:4"}) {
    request_.remote = remote;
    EXPECT_TRUE(Serves()) << remote;
  }
  for (const char* remote : {"10.0.0.1:1", "::1:2:3", "::2:4", "2001:db8::127.0.0.1:5", "unknown",
                             "", "::ffff:10.0.0.1:6"}) {
    request_.remote = remote;
    EXPECT_FALSE(Serves()) << remote;
  }
  request_.headers = {};
  EXPECT_NE(Ask("/").body.find("--api-key"), std::string::npos) << "the text says why";
}

TEST_F(Console, OfAServerWithKeysIsForEveryMachine) {
  context_.requires_key = [] { return true; };
  request_.remote = "10.0.0.1:1";
  EXPECT_TRUE(Serves());
}

TEST_F(Console, CanBeTurnedOff) {
  context_.has_console = false;
  EXPECT_FALSE(Serves());
  EXPECT_NE(Ask("/").body.find("--no-console"), std::string::npos);
}

TEST_F(Console, FilesHaveAStrictPolicyAndAreRevalidated) {
  const Response plain = Ask("/console/app.js");
  request_.headers = {{"accept-encoding", "br, gzip"}};
  const Response zipped = Ask("/console/app.js");
  request_.headers = {{"if-none-match", HeaderOf(plain, "etag")}};
  const Response unchanged = Ask("/console/app.js");

  EXPECT_TRUE(HeaderOf(plain, "content-security-policy").starts_with("default-src 'none'"));
  EXPECT_EQ(HeaderOf(plain, "x-content-type-options"), "nosniff");
  EXPECT_EQ(HeaderOf(plain, "referrer-policy"), "no-referrer");
  EXPECT_EQ(HeaderOf(plain, "content-encoding"), "");
  EXPECT_EQ(HeaderOf(zipped, "content-encoding"), "gzip");
  EXPECT_LT(zipped.body.size(), plain.body.size());
  EXPECT_EQ(unchanged.status, 304);
  EXPECT_EQ(unchanged.body, "");
}

TEST_F(Console, UnknownFilesAreNotFound) {
  const auto error = Attempt([&] { Ask("/console/no/such.js"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace tandem::server
