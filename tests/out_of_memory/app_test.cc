// A whole server out of memory: routes, registry, chat template, tokenizer, engine and replies.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/out_of_memory/failing_new.h"
#include "tests/server/app/app_fixture.h"

namespace tandem::server {
namespace {

// Failures per request. Requests with more allocations fail at evenly spread ones.
constexpr int64_t kMaxFailures = 500;

class AppOutOfMemoryTest : public AppTest {
 protected:
  static std::string GetRequest(const std::string& path) {
    return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  }

  // How many allocations the request makes now.
  int64_t AllocationsOf(const std::string& request) {
    constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 2;
    const tests::FailAllocation failure(kNever);
    Ask(request);
    return kNever - 1 - failure.allocations_left();
  }

  // Sends the request with its k-th allocation failing, then another one on the same connection.
  void FailAt(int64_t k, const std::string& request) {
    SCOPED_TRACE("allocation " + std::to_string(k));
    RawClient client(app_->port());
    RawClient::Reply reply;
    {
      const tests::FailAllocation failure(k);
      client.Send(request);
      reply = client.Read();
    }
    if (!reply.complete) {
      client.TakeInput();
      EXPECT_TRUE(client.IsClosedByServer()) << "neither a response nor a closed connection";
      return;
    }
    EXPECT_TRUE(reply.status == 200 || reply.status == 503 || reply.status == 500)
        << reply.status << reply.body;
    client.Send(GetRequest("/ready"));
    const RawClient::Reply next = client.Read();
    if (next.complete) {
      EXPECT_EQ(next.body, R"({"status":"ready"})") << "a second response";
    }
  }

  void FailEverywhere(const std::string& request) {
    SCOPED_TRACE(request);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(Ask(request).status, 200);  // fills caches
    // Threads interleave differently each time, so a request can make a few more.
    const int64_t n = AllocationsOf(request) * 11 / 10 + 1;
    const int64_t stride = std::max<int64_t>(1, n / kMaxFailures);
    for (int64_t k = 1; k <= n && !HasFailure(); k += stride) {
      FailAt(k, request);
      const RawClient::Reply next = Ask(request);
      ASSERT_EQ(next.status, 200) << "after allocation " << k << ": " << next.body;
      ASSERT_TRUE(next.complete) << "after allocation " << k;
    }
    EXPECT_GT(n, 10);
    WaitUntilIdle();
  }
};

TEST_F(AppOutOfMemoryTest, AFailedAllocationCostsAtMostTheAnswerOfOneRequest) {
  const tests::SpareThisThread spared;
  StartApp();
  Json chat = Chat("Tell me something long enough for several blocks of the cache.");
  chat["max_tokens"] = 4;
  Json streamed = chat;
  streamed["stream"] = true;
  streamed["stream_options"] = {{"include_usage", true}};
  const Json completion = {
      {"model", "tiny"}, {"prompt", "abc"}, {"max_tokens", 4}, {"logprobs", 2}, {"n", 2}};

  for (const char* path : {"/health", "/ready", "/version", "/v1/models", "/v1/models/tiny"}) {
    FailEverywhere(GetRequest(path));
  }
  FailEverywhere(Post("/v1/chat/completions", chat.dump()));
  FailEverywhere(Post("/v1/chat/completions", streamed.dump()));
  FailEverywhere(Post("/v1/completions", completion.dump()));
  FailEverywhere(Post("/tokenize", R"({"model":"tiny","prompt":"some text"})"));
}

}  // namespace
}  // namespace tandem::server
