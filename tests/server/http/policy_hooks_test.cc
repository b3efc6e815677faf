#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/http/http_server.h"
#include "tests/server/http/raw_client.h"

namespace tandem::server {
namespace {

using namespace std::chrono_literals;

struct Ended {
  std::string method;
  std::string route;
  std::string path;
  int status = 0;
  std::map<std::string_view, LogValue> notes;
  std::string remote = {};
  std::string error_code = {};
};

// Records the calls of HttpPolicy::admit and on_end.
class PolicyHooksTest : public testing::Test {
 protected:
  void SetUp() override {
    HttpPolicy policy;
    policy.refusal = [](int status, std::string_view code, std::string_view) {
      Response response;
      response.status = status;
      response.body = code;
      response.error_code = code;
      return response;
    };
    policy.failure = [](const Error&, const Request&) {
      Response response;
      response.status = 500;
      return response;
    };
    policy.gate = [](const Request& request, Access) -> std::optional<Response> {
      if (!request.FindHeader("x-stranger")) return std::nullopt;
      Response response;
      response.status = 401;
      return response;
    };
    policy.admit = [this](Request& request, const Route& route,
                          const ResponseWriter& writer) -> std::optional<Response> {
      writer.AddHeader("x-admitted", "yes");
      request.client = 7;
      request.admission = std::make_shared<Reservation>([this](const auto&) { Released(); });
      if (!route.is_heavy || !request.FindHeader("x-too-much")) return std::nullopt;
      Response response;
      response.status = 503;
      return response;
    };
    policy.on_end = [this](const RequestSummary& summary) {
      Ended ended{std::string(summary.method),
                  std::string(summary.route),
                  std::string(summary.path),
                  summary.status,
                  {}};
      ended.remote = summary.remote;
      ended.error_code = summary.error_code;
      ended.notes.insert(summary.notes.begin(), summary.notes.end());
      const std::lock_guard lock(mutex_);
      ended_.push_back(std::move(ended));
      changed_.notify_all();
    };
    std::vector<Route> routes;
    routes.push_back({"GET", "/things/{id}",
                      [](Request request, ResponseWriter writer) {
                        writer.Note("client", "first");
                        writer.Note("client", static_cast<int64_t>(request.client));
                        writer.Json(200, "{}");
                      },
                      Access::kOpen});
    Route heavy{"POST", "/heavy", [](Request, ResponseWriter writer) { writer.Json(200, "{}"); },
                Access::kOpen};
    heavy.is_heavy = true;
    routes.push_back(heavy);
    routes.push_back({"GET", "/held",
                      [this](Request, ResponseWriter writer) {
                        const std::lock_guard lock(mutex_);
                        held_ = std::make_shared<ResponseWriter>(writer);
                        held_->OnDisconnect([kept = std::weak_ptr(held_)] {
                          if (const auto alive = kept.lock()) alive->Note("tokens", int64_t{3});
                        });
                        changed_.notify_all();
                      },
                      Access::kOpen});
    HttpOptions options;
    options.port = 0;
    server_ = std::make_unique<HttpServer>(options, std::move(routes), std::move(policy));
    server_->Start();
  }

  void Released() {
    const std::lock_guard lock(mutex_);
    ++n_released_;
    changed_.notify_all();
  }
  RawClient::Reply Ask(const std::string& bytes) {
    RawClient client(server_->port());
    client.Send(bytes);
    return client.Read();
  }
  template <class Condition>
  bool Wait(const Condition& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 10s, condition);
  }

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::vector<Ended> ended_;
  int n_released_ = 0;
  std::shared_ptr<ResponseWriter> held_;
  std::unique_ptr<HttpServer> server_;  // destroyed first
};

TEST_F(PolicyHooksTest, EveryRequestIsReportedOnceWithItsRouteAndNotes) {
  Ask("GET /things/5 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  Ask("GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n");
  Ask("GET /things/6 HTTP/1.1\r\nHost: localhost\r\nX-Stranger: 1\r\n\r\n");
  Ask("broken\r\n\r\n");

  ASSERT_TRUE(Wait([&] { return ended_.size() == 4; }));
  EXPECT_EQ(ended_[0].route, "/things/{id}");
  EXPECT_EQ(ended_[0].path, "/things/5");
  EXPECT_EQ(ended_[0].status, 200);
  EXPECT_EQ(ended_[0].notes, (std::map<std::string_view, LogValue>{{"client", int64_t{7}}}));
  EXPECT_EQ(ended_[1].route, "");
  EXPECT_EQ(ended_[1].status, 404);
  EXPECT_EQ(ended_[2].status, 401);
  EXPECT_EQ(ended_[2].route, "/things/{id}");
  EXPECT_EQ(ended_[3].status, 400);
  for (const Ended& ended : ended_) EXPECT_TRUE(ended.remote.starts_with("127.0.0.1:"));
  EXPECT_EQ(ended_[0].error_code, "");
  EXPECT_EQ(ended_[1].error_code, "unknown_url");
  EXPECT_EQ(ended_[3].error_code, "invalid_request");
}

TEST_F(PolicyHooksTest, AdmissionRefusesBeforeTheHandlerAndItsHeadersStay) {
  const auto refused =
      Ask("POST /heavy HTTP/1.1\r\nHost: localhost\r\nX-Too-Much: 1\r\n"
          "Content-Length: 0\r\n\r\n");
  const auto admitted = Ask("POST /heavy HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");

  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("x-admitted"), "yes");
  EXPECT_EQ(admitted.status, 200);
  EXPECT_EQ(admitted.headers.at("x-admitted"), "yes");
  EXPECT_TRUE(Wait([&] { return n_released_ == 2; }));
}

TEST_F(PolicyHooksTest, AClientThatLeavesIsReportedAs499WithWhatWasNotedThen) {
  {
    RawClient client(server_->port());
    client.Send("GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ASSERT_TRUE(Wait([&] { return held_ != nullptr; }));
  }

  ASSERT_TRUE(Wait([&] { return ended_.size() == 1; }));
  EXPECT_EQ(ended_[0].status, 499);
  EXPECT_EQ(ended_[0].notes.at("tokens"), LogValue(int64_t{3}));
  held_.reset();
}

}  // namespace
}  // namespace tandem::server
