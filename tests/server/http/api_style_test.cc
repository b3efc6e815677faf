#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "server/http/http_server.h"
#include "tests/server/http/http_server_fixture.h"
#include "tests/server/http/raw_client.h"

namespace tandem::server {
namespace {

void RewriteStyledError(Response& error, const std::string& request_id) {
  error.status = error.status == 503 ? 529 : error.status;
  error.body = "styled " + request_id;
}

constexpr ApiStyle kTestStyle = {.rewrite_error = RewriteStyledError,
                                 .error_event = "oops",
                                 .request_id_header = "my-request-id"};

// Two routes of one path in a style, and one without.
class ApiStyleTest : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<Route> routes;
    const auto add = [&](const char* pattern, Handler handler, const ApiStyle* style) {
      Route route;
      route.method = "POST";
      route.pattern = pattern;
      route.handler = std::move(handler);
      route.style = style;
      routes.push_back(std::move(route));
    };
    add(
        "/styled", [](Request, ResponseWriter writer) { writer.Json(200, "{}"); }, &kTestStyle);
    add(
        "/styled/throws", [](Request, ResponseWriter) { throw std::runtime_error("x"); },
        &kTestStyle);
    add(
        "/styled/forgets", [](Request, ResponseWriter) {}, &kTestStyle);
    add(
        "/styled/drops",
        [](Request, ResponseWriter writer) { writer.StartEventStream().Send("one"); }, &kTestStyle);
    add(
        "/styled/task",
        [](Request, ResponseWriter writer) {
          const EventStream stream = writer.StartEventStream();
          writer.Post([stream] { throw std::runtime_error("x"); });
        },
        &kTestStyle);
    add(
        "/styled/held",
        [this](Request, ResponseWriter writer) { held_.set_value(writer.StartEventStream()); },
        &kTestStyle);
    add(
        "/plain", [](Request, ResponseWriter) { throw std::runtime_error("x"); }, nullptr);
    HttpPolicy policy = TestPolicy();
    policy.gate = [](const Request& request, Access) -> std::optional<Response> {
      if (!request.FindHeader("x-stranger")) return std::nullopt;
      Response response;
      response.status = 401;
      return response;
    };
    HttpOptions options;
    options.port = 0;
    options.max_body_bytes = 10;
    server_ = std::make_unique<HttpServer>(options, std::move(routes), std::move(policy));
    server_->Start();
  }

  RawClient::Reply Ask(const std::string& method_and_path, const std::string& headers = {},
                       const std::string& body = {}) {
    RawClient client(server_->port());
    client.Send(method_and_path + " HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: r1\r\n" + headers +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.Read();
  }

  std::promise<EventStream> held_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(ApiStyleTest, RewritesErrorsOfEveryOrigin) {
  struct Case {
    RawClient::Reply reply;
    int status;
  };
  const Case cases[] = {
      {Ask("POST /styled", "X-Stranger: yes\r\n"), 401},
      {Ask("GET /styled"), 405},
      {Ask("POST /styled", {}, "more than ten"), 413},
      {Ask("POST /styled", "Content-Encoding: gzip\r\n"), 415},
      {Ask("POST /styled/throws"), 500},
      {Ask("POST /styled/forgets"), 500},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(one.reply.status, one.status);
    EXPECT_EQ(one.reply.body, "styled r1") << one.status;
    EXPECT_EQ(one.reply.headers.at("my-request-id"), "r1");
  }
}

TEST_F(ApiStyleTest, LeavesAnswersAndOtherRoutesAlone) {
  const auto good = Ask("POST /styled");
  EXPECT_EQ(good.body, "{}");
  EXPECT_EQ(good.headers.at("my-request-id"), "r1");
  const auto other = Ask("POST /plain");
  EXPECT_NE(other.body.find("internal_error"), std::string::npos);
  EXPECT_FALSE(other.headers.contains("my-request-id"));
  EXPECT_NE(Ask("POST /styled/unknown").body.find("unknown_url"), std::string::npos);
}

TEST_F(ApiStyleTest, EndsAFailedStreamWithItsEvent) {
  EXPECT_EQ(Ask("POST /styled/drops").body, "data: one\n\nevent: oops\ndata: styled r1\n\n");
  EXPECT_EQ(Ask("POST /styled/task").body, "event: oops\ndata: styled r1\n\n");
}

TEST_F(ApiStyleTest, EndsAStreamOfAStoppingServerWithItsEvent) {
  RawClient client(server_->port());
  client.Send(
      "POST /styled/held HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: r1\r\n"
      "Content-Length: 0\r\n\r\n");
  EventStream stream = held_.get_future().get();
  stream.Send("one");
  server_->Stop();
  EXPECT_EQ(client.Read().body, "data: one\n\nevent: oops\ndata: styled r1\n\n");
}

}  // namespace
}  // namespace tandem::server
