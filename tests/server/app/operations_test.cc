#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "server/app/app.h"
#include "tests/server/http/raw_client.h"
#include "tests/support/temporary_dir.h"
#include "tests/support/tiny_model.h"

namespace tandem::server {
namespace {

using namespace std::chrono_literals;

// A server whose clock the test controls.
class OperationsTest : public testing::Test {
 protected:
  void StartApp(const std::function<void(AppOptions&)>& change = [](AppOptions&) {}) {
    std::filesystem::create_directory(directory_.path() / "tiny");
    tests::WriteTinyModel(directory_.path() / "tiny", {});
    AppOptions options;
    options.http.port = 0;
    options.engine.threads = 1;
    options.engine.kv_cache_bytes = 32 << 20;
    options.models = {{"", (directory_.path() / "tiny").string()}};
    options.clock = [this] { return std::chrono::steady_clock::now() + ahead_.load(); };
    change(options);
    app_ = std::make_unique<App>(std::move(options));
    app_->Start();
  }
  RawClient::Reply Ask(const std::string& bytes) {
    RawClient client(app_->port());
    client.Send(bytes);
    return client.Read();
  }
  RawClient::Reply Get(const std::string& path) {
    return Ask("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  RawClient::Reply Complete(int max_tokens, const std::string& key) {
    const nlohmann::json body = {{"model", "tiny"},
                                 {"prompt", {1, 2, 3}},
                                 {"temperature", 0},
                                 {"max_tokens", max_tokens},
                                 {"ignore_eos", true}};
    const std::string text = body.dump();
    return Ask(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Authorization: Bearer " +
        key + "\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text);
  }

  tests::TemporaryDir directory_;
  std::atomic<std::chrono::seconds> ahead_{0s};
  std::unique_ptr<App> app_;
};

TEST_F(OperationsTest, ALoopWithoutAHeartbeatForTenSecondsIsUnhealthy) {
  StartApp();
  EXPECT_EQ(Get("/health").status, 200);

  ahead_ = 12s;  // the loop beats every second: now its last beat seems twelve seconds old
  const auto stuck = Get("/health");
  EXPECT_EQ(stuck.status, 503);
  EXPECT_TRUE(stuck.headers.contains("retry-after"));

  ahead_ = 0s;
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(OperationsTest, ALimitOfRequestsEndsWithTime) {
  StartApp([](AppOptions& options) {
    options.api_keys = {"key-a", "key-b"};
    options.rate_limits.requests = 2;
  });
  EXPECT_EQ(Complete(2, "key-a").headers.at("x-ratelimit-remaining-requests"), "1");
  EXPECT_EQ(Complete(2, "key-a").status, 200);

  const auto refused = Complete(2, "key-a");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(nlohmann::json::parse(refused.body)["error"]["code"], "rate_limit_exceeded");
  EXPECT_EQ(refused.headers.at("x-ratelimit-remaining-requests"), "0");
  const int64_t wait_s = std::stoll(refused.headers.at("retry-after"));
  EXPECT_GT(wait_s, 20);
  EXPECT_LE(wait_s, 30);
  EXPECT_EQ(Complete(2, "key-b").status, 200);

  ahead_ = std::chrono::seconds(wait_s);
  EXPECT_EQ(Complete(2, "key-a").status, 200);
}

TEST_F(OperationsTest, TokensAreChargedInAdvanceAndCorrectedAfterwards) {
  StartApp([](AppOptions& options) {
    options.api_keys = {"key-a"};
    options.rate_limits.tokens = 100;
  });
  // Three prompt tokens and twenty requested ones.
  const auto first = Complete(20, "key-a");
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.headers.at("x-ratelimit-limit-tokens"), "100");
  EXPECT_EQ(first.headers.at("x-ratelimit-remaining-tokens"), "77");
  EXPECT_EQ(Complete(60, "key-a").status, 200);

  const auto refused = Complete(60, "key-a");
  EXPECT_EQ(refused.status, 429);
  EXPECT_NE(refused.body.find("tokens"), std::string::npos);

  ahead_ = std::chrono::seconds(std::stoll(refused.headers.at("retry-after")) + 1);
  EXPECT_EQ(Complete(60, "key-a").status, 200);
}

}  // namespace
}  // namespace tandem::server
