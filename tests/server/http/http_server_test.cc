#include "server/http/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>
#include <memory>
#include <optional>
#include <semaphore>
#include <stdexcept>
#include <string>

#include "server/http/response_writer.h"
#include "tests/server/http/raw_client.h"

namespace tandem::server {
namespace {

using namespace std::chrono_literals;

HttpPolicy TestPolicy() {
  HttpPolicy policy;
  policy.refusal = [](int status, std::string_view code, std::string_view message) {
    Response response;
    response.status = status;
    response.body =
        "{\"code\":\"" + std::string(code) + "\",\"message\":\"" + std::string(message) + "\"}";
    return response;
  };
  policy.exception = [](std::exception_ptr, const Request&) {
    Response response;
    response.status = 500;
    response.body = "{\"code\":\"internal_error\"}";
    return response;
  };
  policy.gate = [](const Request& request, Access access) -> std::optional<Response> {
    if (access != Access::kAdminKey || request.FindHeader("authorization")) return std::nullopt;
    Response response;
    response.status = 401;
    return response;
  };
  return policy;
}

// A server whose handlers are under the test's control.
class HttpServerTest : public testing::Test {
 protected:
  void StartServer(HttpOptions options = {}) {
    options.port = 0;
    std::vector<Route> routes;
    routes.push_back(
        {"GET", "/health",
         [](Request, ResponseWriter writer) { writer.Json(200, "{\"status\":\"ok\"}"); },
         Access::kOpen, RunsOn::kIoThread});
    routes.push_back({"POST", "/echo",
                      [](Request request, ResponseWriter writer) {
                        writer.AddHeader("x-path", request.path);
                        writer.Json(200, request.body);
                      },
                      Access::kOpen});
    routes.push_back({"GET", "/v1/models/{id+}",
                      [](Request request, ResponseWriter writer) {
                        writer.Text(200, request.path_params.at("id"));
                      },
                      Access::kApiKey});
    routes.push_back({"POST", "/secret",
                      [](Request, ResponseWriter writer) { writer.Json(200, "{}"); },
                      Access::kAdminKey});
    routes.push_back({"POST", "/throw",
                      [](Request, ResponseWriter) { throw std::runtime_error("private detail"); },
                      Access::kOpen});
    routes.push_back({"POST", "/forget", [](Request, ResponseWriter) {}, Access::kOpen});
    routes.push_back({"GET", "/held",
                      [this](Request, ResponseWriter writer) {
                        writer.OnDisconnect([this] { left_.release(); });
                        held_.set_value(std::move(writer));
                      },
                      Access::kApiKey});
    routes.push_back({"GET", "/stream",
                      [this](Request, ResponseWriter writer) {
                        writer.OnDisconnect([this] { left_.release(); });
                        stream_.set_value(writer.StartEventStream());
                      },
                      Access::kApiKey});
    server_ = std::make_unique<HttpServer>(options, std::move(routes), TestPolicy());
    server_->Start();
  }

  RawClient::Reply Ask(std::string_view bytes) {
    RawClient client(server_->port());
    client.Send(bytes);
    return client.Read(bytes.starts_with("HEAD"));
  }

  // Waits until the client's leaving has been reported.
  bool Left() { return left_.try_acquire_for(10s); }

  std::promise<ResponseWriter> held_;
  std::promise<EventStream> stream_;
  std::counting_semaphore<100> left_{0};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersWithTheHeadersOfTheContract) {
  StartServer();

  const auto reply = Ask("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");

  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "{\"status\":\"ok\"}");
  EXPECT_EQ(reply.headers.at("content-type"), "application/json");
  EXPECT_EQ(reply.headers.at("server"), "tandem");
  EXPECT_TRUE(reply.headers.at("x-request-id").starts_with("req_"));
  EXPECT_FALSE(reply.headers.contains("access-control-allow-origin"));
}

TEST_F(HttpServerTest, KeepsAClientsRequestIdOnlyIfItIsHarmless) {
  StartServer();

  const auto good = Ask("GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: job-7.a_B\r\n\r\n");
  const auto bad = Ask("GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: a b\r\n\r\n");

  EXPECT_EQ(good.headers.at("x-request-id"), "job-7.a_B");
  EXPECT_TRUE(bad.headers.at("x-request-id").starts_with("req_"));
}

TEST_F(HttpServerTest, RefusesMessagesThatCouldBeReadInTwoWays) {
  StartServer();
  const std::string tail = "\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string head = "POST /echo HTTP/1.1\r\nHost: x\r\n";
  const std::string cases[] = {
      head + "Content-Length: 3\r\nTransfer-Encoding: chunked" + tail,
      head + "Transfer-Encoding: chunked\r\nContent-Length: 3" + tail,
      head + "Content-Length: 3\r\nContent-Length: 4" + tail,
      head + "Content-Length: 3, 4" + tail,
      head + "Content-Length: +3" + tail,
      head + "Content-Length: -3" + tail,
      head + "Content-Length: 1 0" + tail,
      head + "Content-Length: 0x10" + tail,
      head + "Content-Length:" + tail,
      head + "Content-Length: 99999999999999999999999" + tail,
      head + "Transfer-Encoding: gzip" + tail,
      head + "Transfer-Encoding: gzip, chunked" + tail,
      head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked" + tail,
      head + "Transfer-Encoding: xchunked" + tail,
      head + "Content-Length : 3" + tail,
      head + "X-Folded: a\r\n b" + tail,
      head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
      head + "Transfer-Encoding: chunked\r\n\r\n-1\r\n",
      head + "Transfer-Encoding: chunked\r\n\r\n3\nabc\n",
      head + "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
      head + "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
      "POST /echo HTTP/1.1\r\nContent-Length: 2" + tail,
      "POST /echo HTTP/1.1\r\nHost: x\r\nHost: y\r\nContent-Length: 2" + tail,
      "GET /health HTTP/1.1\nHost: x\n\n",
      "GET  /health HTTP/1.1\r\nHost: x" + tail,
      "GET /health HTTP/2.0\r\nHost: x" + tail,
      "GET /health\r\nHost: x" + tail,
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01", 8),
      "GET /a/../b HTTP/1.1\r\nHost: x" + tail,
      "GET /a//b HTTP/1.1\r\nHost: x" + tail,
      "GET /a%00b HTTP/1.1\r\nHost: x" + tail,
      "GET /%2e%2e/x HTTP/1.1\r\nHost: x" + tail,
      "GET /%zz HTTP/1.1\r\nHost: x" + tail,
      "GET health HTTP/1.1\r\nHost: x" + tail,
  };
  for (const std::string& bytes : cases) {
    SCOPED_TRACE(bytes);
    RawClient client(server_->port());

    client.Send(bytes);
    const auto reply = client.Read();

    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.headers.at("connection"), "close");
    client.ShutdownSend();
    EXPECT_TRUE(client.IsClosedByServer()) << "something followed: " << client.input();
  }
  EXPECT_EQ(Ask("GET /health HTTP/1.1\r\nHost: x\r\n\r\n").status, 200);
}

TEST_F(HttpServerTest, RefusesWhatIsTooBigBeforeReadingIt) {
  HttpOptions options;
  options.max_body_bytes = 1000;
  StartServer(options);
  const std::string host = " HTTP/1.1\r\nHost: x\r\n";
  std::string many = "GET /health" + host;
  for (int i = 0; i < 101; ++i) many += std::string("h") + std::to_string(i) + ": v\r\n";

  EXPECT_EQ(Ask("POST /echo" + host + "Content-Length: 1001\r\n\r\n").status, 413);
  EXPECT_EQ(Ask("POST /echo" + host + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n").status, 413);
  EXPECT_EQ(Ask("GET /" + std::string(9000, 'a') + host + "\r\n").status, 414);
  EXPECT_EQ(Ask("GET /" + std::string(9000, 'a')).status, 414);
  EXPECT_EQ(Ask("GET /health" + host + "big: " + std::string(33000, 'a')).status, 431);
  EXPECT_EQ(Ask(many + "\r\n").status, 431);
  EXPECT_EQ(Ask("POST /echo" + host + "Content-Length: 1000\r\n\r\n" + std::string(1000, 'a'))
                .body.size(),
            1000u);
}

TEST_F(HttpServerTest, ReadsBodiesHoweverTheyAreCut) {
  StartServer();
  const std::string bytes =
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "3;ext=\"a\"\r\nabc\r\n00a\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n"
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nwxyz";
  RawClient whole(server_->port());
  RawClient single(server_->port());

  whole.Send(bytes);
  for (const char c : bytes) single.Send(std::string_view(&c, 1));

  for (RawClient* client : {&whole, &single}) {
    EXPECT_EQ(client->Read().body, "abc0123456789");
    EXPECT_EQ(client->Read().body, "wxyz");
  }
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  StartServer();
  RawClient client(server_->port());
  std::string bytes;
  for (int i = 0; i < 60; ++i) {
    const std::string body = std::to_string(i);
    bytes += "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
             "\r\n\r\n" + body;
  }

  client.Send(bytes);

  for (int i = 0; i < 60; ++i) ASSERT_EQ(client.Read().body, std::to_string(i));
}

TEST_F(HttpServerTest, AnswersGoodRequestsBeforeABadOneAndThenCloses) {
  StartServer();
  RawClient client(server_->port());

  client.Send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na"
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n"
      "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");

  EXPECT_EQ(client.Read().body, "a");
  EXPECT_EQ(client.Read().status, 400);
  EXPECT_TRUE(client.IsClosedByServer());
}

TEST_F(HttpServerTest, KnowsRoutesMethodsHeadAndOptions) {
  StartServer();
  const std::string rest = " HTTP/1.1\r\nHost: x\r\n\r\n";

  EXPECT_EQ(Ask("GET /nowhere" + rest).status, 404);
  EXPECT_EQ(Ask("GET /health/" + rest).status, 404);
  EXPECT_EQ(Ask("BREW /nowhere" + rest).status, 404);
  const auto wrong_method = Ask("DELETE /health" + rest);
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_EQ(wrong_method.headers.at("allow"), "GET, HEAD, OPTIONS");
  const auto options = Ask("OPTIONS /echo" + rest);
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("allow"), "POST, OPTIONS");
  EXPECT_FALSE(options.headers.contains("content-length"));
  EXPECT_EQ(Ask("OPTIONS /secret" + rest).status, 204);
  EXPECT_EQ(Ask("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n").status, 204);
  const auto head = Ask("HEAD /health" + rest);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "15");
  EXPECT_EQ(Ask("GET /v1/models/org/name:tag" + rest).body, "org/name:tag");
  EXPECT_EQ(Ask("GET /v1/models/org%2Fname%3Atag?x=1" + rest).body, "org/name:tag");
  EXPECT_EQ(Ask("GET http://host/health" + rest).status, 200);
}

TEST_F(HttpServerTest, AHeadAnswerLeavesTheConnectionInStep) {
  StartServer();
  RawClient client(server_->port());

  client.Send("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n");

  EXPECT_EQ(client.Read(true).status, 200);
  EXPECT_EQ(client.Read().body, "{\"status\":\"ok\"}");
}

TEST_F(HttpServerTest, GateComesAfterTheRouteAndBeforeTheBody) {
  StartServer();

  const auto refused =
      Ask("POST /secret HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
  const auto wrong_method = Ask("GET /secret HTTP/1.1\r\nHost: x\r\n\r\n");

  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(wrong_method.status, 405);
}

TEST_F(HttpServerTest, ARefusedBodyIsReadPastAndTheConnectionGoesOn) {
  StartServer();
  RawClient client(server_->port());
  const std::string body(1 << 20, 'b');

  client.Send("POST /secret HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n");
  client.Send(body);
  client.Send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");

  EXPECT_EQ(client.Read().status, 401);
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpServerTest, RefusedHeadsKeepTheirIdAndOrigin) {
  StartServer();

  const auto too_large =
      Ask("POST /v1/x HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\nOrigin: http://localhost\r\n"
          "Content-Length: 99999999999\r\n\r\n");
  const auto two_hosts =
      Ask("POST /echo HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\nHost: y\r\n\r\n");

  EXPECT_EQ(too_large.status, 413);
  EXPECT_EQ(too_large.headers.at("x-request-id"), "mine");
  EXPECT_EQ(too_large.headers.at("access-control-allow-origin"), "http://localhost");
  EXPECT_TRUE(too_large.headers.contains("openai-processing-ms"));
  EXPECT_EQ(two_hosts.headers.at("x-request-id"), "mine");
}

TEST_F(HttpServerTest, ContinuesOnlyAcceptedHeads) {
  StartServer();
  RawClient client(server_->port());

  client.Send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\n");
  EXPECT_EQ(client.Read().status, 100);
  client.Send("ok");

  EXPECT_EQ(client.Read().body, "ok");
  EXPECT_EQ(Ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n"
                "Expect: 100-continue\r\n\r\n")
                .status,
            413);
}

TEST_F(HttpServerTest, ClosesWhenAskedAndForHttp10) {
  StartServer();
  RawClient asked(server_->port());
  RawClient old(server_->port());

  asked.Send("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  old.Send("GET /health HTTP/1.0\r\n\r\n");

  EXPECT_EQ(asked.Read().headers.at("connection"), "close");
  EXPECT_TRUE(asked.IsClosedByServer());
  EXPECT_EQ(old.Read().status, 200);
  EXPECT_TRUE(old.IsClosedByServer());
}

TEST_F(HttpServerTest, TurnsExceptionsAndForgottenRequestsIntoInternalErrors) {
  StartServer();
  const std::string rest = " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";

  const auto thrown = Ask("POST /throw" + rest);
  const auto forgotten = Ask("POST /forget" + rest);

  EXPECT_EQ(thrown.status, 500);
  EXPECT_EQ(thrown.body.find("private"), std::string::npos);
  EXPECT_EQ(forgotten.status, 500);
}

TEST_F(HttpServerTest, StreamsEventsAndKeepsTheConnection) {
  StartServer();
  RawClient client(server_->port());

  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EventStream stream = stream_.get_future().get();
  stream.Send("one");
  ASSERT_TRUE(client.ReadUntil("data: one\n\n"));
  stream.SendNamed("end", "two");
  stream.Close();

  const auto reply = client.Read();
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(reply.body, "data: one\n\nevent: end\ndata: two\n\n");
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(reply.headers.at("cache-control"), "no-cache");
  EXPECT_EQ(reply.headers.at("x-accel-buffering"), "no");
  client.Send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpServerTest, StreamsToHttp10UntilClose) {
  StartServer();
  RawClient client(server_->port());

  client.Send("GET /stream HTTP/1.0\r\n\r\n");
  EventStream stream = stream_.get_future().get();
  stream.Send("one");
  stream.Close();

  const auto reply = client.Read();
  EXPECT_EQ(reply.body, "data: one\n\n");
  EXPECT_FALSE(reply.headers.contains("transfer-encoding"));
}

TEST_F(HttpServerTest, ADroppedStreamEndsWithAnErrorEvent) {
  StartServer();
  RawClient client(server_->port());

  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  { const EventStream dropped = stream_.get_future().get(); }
  stream_ = {};  // the promise's own copy

  const auto reply = client.Read();
  EXPECT_TRUE(reply.complete);
  EXPECT_NE(reply.body.find("internal_error"), std::string::npos);
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(HttpServerTest, PingsASilentStream) {
  HttpOptions options;
  options.ping_interval = 5ms;
  StartServer(options);
  RawClient client(server_->port());

  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EventStream stream = stream_.get_future().get();

  EXPECT_TRUE(client.ReadUntil(": ping\n\n"));
}

TEST_F(HttpServerTest, NoticesAClientThatLeavesWhileItsRequestRuns) {
  StartServer();
  auto client = std::make_unique<RawClient>(server_->port());
  client->Send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
  const ResponseWriter writer = held_.get_future().get();
  EXPECT_EQ(server_->running_requests(), 1u);

  client.reset();

  EXPECT_TRUE(Left());
  EXPECT_TRUE(writer.disconnected());
  EXPECT_EQ(server_->running_requests(), 0u);
}

TEST_F(HttpServerTest, EndOfFileAloneCountsAsLeaving) {
  StartServer();
  RawClient client(server_->port());
  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EventStream stream = stream_.get_future().get();

  client.ShutdownSend();

  EXPECT_TRUE(Left());
  EXPECT_TRUE(stream.disconnected());
}

TEST_F(HttpServerTest, NoticesAClientThatLeavesBehindMoreRequestsThanAreRead) {
  HttpOptions options;
  options.leave_poll_interval = 5ms;
  StartServer(options);
  RawClient client(server_->port());
  client.Send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
  const ResponseWriter writer = held_.get_future().get();
  // More than is kept, and more than is read at once.
  std::string bytes;
  for (int i = 0; i < 2000; ++i) bytes += "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  client.Send(bytes);

  client.ShutdownSend();

  EXPECT_TRUE(Left());
  EXPECT_TRUE(writer.disconnected());
}

TEST_F(HttpServerTest, WaitsWithoutATimeoutForRequestsThatItDoesNotRead) {
  HttpOptions options;
  options.header_timeout = 10ms;
  options.body_idle_timeout = 10ms;
  options.max_pipelined_requests = 2;
  StartServer(options);
  RawClient client(server_->port());
  client.Send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
  const ResponseWriter writer = held_.get_future().get();
  std::string bytes;
  for (int i = 0; i < 2; ++i) bytes += "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";

  client.Send(bytes + "GET /health HTTP/1.1\r\nHo");
  EXPECT_FALSE(left_.try_acquire_for(60ms));  // a handful of timeouts
  writer.Json(200, "{}");
  client.Send("st: x\r\n\r\n");

  for (int i = 0; i < 4; ++i) EXPECT_EQ(client.Read().status, 200) << i;
}

TEST_F(HttpServerTest, BytesThatArriveWhileARequestRunsAreItsSuccessors) {
  StartServer();
  RawClient client(server_->port());
  client.Send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
  const ResponseWriter writer = held_.get_future().get();

  client.Send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  writer.Json(200, "\"first\"");

  EXPECT_EQ(client.Read().body, "\"first\"");
  EXPECT_EQ(client.Read().body, "{\"status\":\"ok\"}");
}

TEST_F(HttpServerTest, HealthAnswersWhileEveryRequestThreadIsBusy) {
  HttpOptions options;
  options.n_request_threads = 1;
  options.port = 0;
  std::latch entered(1);
  std::latch release(1);
  std::vector<Route> routes;
  routes.push_back({"GET", "/busy",
                    [&](Request, ResponseWriter writer) {
                      entered.count_down();
                      release.wait();
                      writer.Json(200, "{}");
                    },
                    Access::kOpen});
  routes.push_back({"GET", "/health",
                    [](Request, ResponseWriter writer) { writer.Json(200, "{}"); }, Access::kOpen,
                    RunsOn::kIoThread});
  HttpServer server(options, std::move(routes), TestPolicy());
  server.Start();
  RawClient busy(server.port());
  busy.Send("GET /busy HTTP/1.1\r\nHost: x\r\n\r\n");
  entered.wait();

  RawClient client(server.port());
  client.Send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);

  release.count_down();
  EXPECT_EQ(busy.Read().status, 200);
}

TEST_F(HttpServerTest, HealthAnswersWhileAnAnswerIsBeingShaped) {
  HttpOptions options;
  options.port = 0;
  std::latch entered(1);
  std::latch release(1);
  std::vector<Route> routes;
  routes.push_back({"GET", "/large",
                    [&](Request, ResponseWriter writer) {
                      writer.Post([&, writer] {
                        entered.count_down();
                        release.wait();
                        writer.Json(200, "{}");
                      });
                    },
                    Access::kOpen});
  routes.push_back({"GET", "/health",
                    [](Request, ResponseWriter writer) { writer.Json(200, "{}"); }, Access::kOpen,
                    RunsOn::kIoThread});
  HttpServer server(options, std::move(routes), TestPolicy());
  server.Start();
  RawClient busy(server.port());
  busy.Send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
  entered.wait();

  RawClient client(server.port());
  client.Send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);

  release.count_down();
  EXPECT_EQ(busy.Read().status, 200);
}

TEST_F(HttpServerTest, RefusesWhenTheRequestQueueIsFull) {
  HttpOptions options;
  options.n_request_threads = 1;
  options.max_queued_requests = 0;
  StartServer(options);

  const auto reply = Ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");

  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_EQ(reply.headers.at("retry-after-ms"), "1000");
}

TEST_F(HttpServerTest, RefusesConnectionsBeyondTheLimit) {
  HttpOptions options;
  options.max_connections = 1;
  StartServer(options);
  RawClient first(server_->port());
  first.Send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(first.Read().status, 200);

  RawClient second(server_->port());
  EXPECT_EQ(second.Read().status, 503);
  EXPECT_TRUE(second.IsClosedByServer());
}

TEST_F(HttpServerTest, TimesOutSlowHeadsSlowBodiesAndIdleConnections) {
  HttpOptions options;
  options.header_timeout = 20ms;
  options.body_idle_timeout = 20ms;
  options.keep_alive_timeout = 20ms;
  StartServer(options);
  RawClient idle(server_->port());
  RawClient used(server_->port());

  EXPECT_EQ(Ask("GET /health HT").status, 408);
  EXPECT_EQ(Ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab").status, 408);
  EXPECT_TRUE(idle.IsClosedByServer());
  used.Send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  used.Read();
  EXPECT_TRUE(used.IsClosedByServer());
}

TEST_F(HttpServerTest, ARunningRequestIsNotIdle) {
  HttpOptions options;
  options.keep_alive_timeout = 10ms;
  options.header_timeout = 10ms;
  StartServer(options);
  RawClient client(server_->port());
  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EventStream stream = stream_.get_future().get();

  EXPECT_FALSE(left_.try_acquire_for(60ms));  // a handful of timeouts
  stream.Close();

  EXPECT_TRUE(client.Read().complete);
}

TEST_F(HttpServerTest, TellsTheProducerToPauseForASlowReaderAndToGoOn) {
  HttpOptions options;
  options.max_output_bytes = 64 << 10;
  StartServer(options);
  RawClient client(server_->port(), 4096);
  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EventStream stream = stream_.get_future().get();
  std::atomic<bool> paused{false};
  std::binary_semaphore resumed(0);
  stream.OnBackpressure([&](bool is_paused) {
    paused = is_paused;
    if (!is_paused) resumed.release();
  });

  const std::string line(8000, 'x');
  size_t n_sent = 0;
  while (!paused && n_sent < 100'000) {
    stream.Send(line);
    ++n_sent;
  }
  ASSERT_TRUE(paused);
  std::thread reader([&] { EXPECT_EQ(client.Read().body.size(), n_sent * (line.size() + 8)); });
  EXPECT_TRUE(resumed.try_acquire_for(10s));
  stream.Close();

  reader.join();
}

TEST_F(HttpServerTest, ResetsAReaderThatMakesNoProgress) {
  HttpOptions options;
  options.max_output_bytes = 64 << 10;
  options.write_timeout = 30ms;
  StartServer(options);
  RawClient client(server_->port(), 4096);
  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EventStream stream = stream_.get_future().get();
  std::atomic<bool> paused{false};
  stream.OnBackpressure([&](bool is_paused) { paused = is_paused; });

  // The kernel's own buffers take megabytes before anything stalls.
  const std::string line(8000, 'x');
  while (!left_.try_acquire()) {
    if (paused) {
      std::this_thread::yield();
    } else {
      stream.Send(line);
    }
  }

  EXPECT_TRUE(stream.disconnected());
}

TEST_F(HttpServerTest, GivesUpAProducerThatCannotPause) {
  HttpOptions options;
  options.max_output_bytes = 64 << 10;
  StartServer(options);
  RawClient client(server_->port(), 4096);
  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EventStream stream = stream_.get_future().get();

  const std::string line(8000, 'x');
  for (int i = 0; !stream.disconnected() && i < 100'000; ++i) stream.Send(line);

  EXPECT_TRUE(Left());
  EXPECT_FALSE(client.Read().complete);  // the connection is reset, not left open
}

TEST_F(HttpServerTest, DrainsRunningRequestsAndRefusesNewOnes) {
  StartServer();
  RawClient idle(server_->port());
  idle.Send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  idle.Read();
  RawClient client(server_->port());
  client.Send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
  const ResponseWriter writer = held_.get_future().get();

  server_->Drain();
  EXPECT_TRUE(idle.IsClosedByServer());
  EXPECT_FALSE(server_->WaitDrained(0ms));
  writer.Json(200, "\"done\"");

  EXPECT_TRUE(server_->WaitDrained(10s));
  const auto reply = client.Read();
  EXPECT_EQ(reply.body, "\"done\"");
  EXPECT_EQ(reply.headers.at("connection"), "close");
}

TEST_F(HttpServerTest, RequestsBehindARunningOneAreRefusedWhileDraining) {
  StartServer();
  RawClient client(server_->port());
  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EventStream stream = stream_.get_future().get();
  // The bytes of the second are there before the drain begins: health has answered behind them.
  client.Send("GET /v1/models/m HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(Ask("GET /health HTTP/1.1\r\nHost: x\r\n\r\n").status, 200);

  server_->Drain();
  stream.Close();

  EXPECT_EQ(client.Read().status, 200);
  const auto refused = client.Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("shutting_down"), std::string::npos);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_TRUE(client.IsClosedByServer());
}

TEST_F(HttpServerTest, StopEndsWhatTheDrainCouldNotWaitFor) {
  StartServer();
  RawClient held(server_->port());
  held.Send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
  const ResponseWriter writer = held_.get_future().get();
  RawClient streaming(server_->port());
  streaming.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const EventStream stream = stream_.get_future().get();
  stream.Send("one");

  std::thread stopper([&] { server_->Stop(); });
  const auto held_reply = held.Read();
  const auto stream_reply = streaming.Read();
  held.Close();
  streaming.Close();
  stopper.join();

  EXPECT_EQ(held_reply.status, 503);
  EXPECT_NE(held_reply.body.find("shutting_down"), std::string::npos);
  EXPECT_TRUE(stream_reply.body.starts_with("data: one\n\n"));
  EXPECT_NE(stream_reply.body.find("shutting_down"), std::string::npos);
  EXPECT_TRUE(stream_reply.body.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(Left());
  EXPECT_TRUE(Left());
  EXPECT_EQ(server_->open_connections(), 0u);
}

TEST_F(HttpServerTest, EchoesOnlyLocalOriginsWhileNoKeyIsNeeded) {
  StartServer();
  const std::string head = "GET /health HTTP/1.1\r\nHost: x\r\nOrigin: ";

  const auto local = Ask(head + "http://localhost:3000\r\n\r\n");
  const auto foreign = Ask(head + "https://localhost.evil.example\r\n\r\n");

  EXPECT_EQ(local.headers.at("access-control-allow-origin"), "http://localhost:3000");
  EXPECT_TRUE(local.headers.contains("access-control-expose-headers"));
  EXPECT_FALSE(foreign.headers.contains("access-control-allow-origin"));
}

TEST_F(HttpServerTest, HalfOfManyStreamingClientsVanishAndNothingRemains) {
  HttpOptions options;
  options.port = 0;
  std::vector<Route> routes;
  std::mutex mutex;
  std::vector<EventStream> streams;
  std::atomic<int> n_started{0};
  std::counting_semaphore<1000> left(0);
  routes.push_back({"GET", "/stream",
                    [&](Request, ResponseWriter writer) {
                      writer.OnDisconnect([&] { left.release(); });
                      const std::lock_guard lock(mutex);
                      streams.push_back(writer.StartEventStream());
                      ++n_started;
                      n_started.notify_all();
                    },
                    Access::kOpen});
  HttpServer server(options, std::move(routes), TestPolicy());
  server.Start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  for (int seen = n_started; seen < 200; seen = n_started) n_started.wait(seen);

  for (size_t i = 0; i < 200; i += 2) clients[i].reset();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(left.try_acquire_for(10s));
  for (const EventStream& stream : streams) {
    stream.Send("bye");
    stream.Close();
  }

  for (size_t i = 1; i < 200; i += 2) EXPECT_EQ(clients[i]->Read().body, "data: bye\n\n");
  clients.clear();
  server.Stop();
  EXPECT_EQ(server.running_requests(), 0u);
  EXPECT_EQ(server.open_connections(), 0u);
}

}  // namespace
}  // namespace tandem::server
