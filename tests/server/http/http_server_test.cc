#include "server/http/http_server.h"

#include <latch>
#include <string>
#include <vector>

#include "tests/server/http/http_server_fixture.h"

namespace tandem::server {
namespace {

TEST_F(HttpServerTest, AnswersWithTheHeadersOfTheContract) {
  StartServer();

  const auto reply = Ask("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");

  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "{\"status\":\"ok\"}");
  EXPECT_EQ(reply.headers.at("content-type"), "application/json");
  EXPECT_EQ(reply.headers.at("server"), "tandem");
  EXPECT_TRUE(reply.headers.at("x-request-id").starts_with("req_"));
  EXPECT_FALSE(reply.headers.contains("access-control-allow-origin"));
}

TEST_F(HttpServerTest, KeepsAClientsRequestIdOnlyIfItIsHarmless) {
  StartServer();

  const auto good =
      Ask("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: job-7.a_B\r\n\r\n");
  const auto bad = Ask("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a b\r\n\r\n");

  EXPECT_EQ(good.headers.at("x-request-id"), "job-7.a_B");
  EXPECT_TRUE(bad.headers.at("x-request-id").starts_with("req_"));
}

TEST_F(HttpServerTest, RefusesMessagesThatCouldBeReadInTwoWays) {
  StartServer();
  const std::string tail = "\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const std::string head = "POST /echo HTTP/1.1\r\nHost: localhost\r\n";
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
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nHost: y\r\nContent-Length: 2" + tail,
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
  EXPECT_EQ(Ask("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
}

TEST_F(HttpServerTest, RefusesWhatIsTooBigBeforeReadingIt) {
  HttpOptions options;
  options.max_body_bytes = 1000;
  StartServer(options);
  const std::string host = " HTTP/1.1\r\nHost: localhost\r\n";
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
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "3;ext=\"a\"\r\nabc\r\n00a\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n"
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nwxyz";
  RawClient whole(server_->port());
  RawClient single(server_->port());

  whole.Send(bytes);
  for (const char c : bytes) single.Send(std::string_view(&c, 1));

  for (RawClient* client : {&whole, &single}) {
    EXPECT_EQ(client->Read().body, "abc0123456789");
    EXPECT_EQ(client->Read().body, "wxyz");
  }
}

TEST_F(HttpServerTest, AnswersGoodRequestsBeforeABadOneAndThenCloses) {
  StartServer();
  RawClient client(server_->port());

  client.Send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\na"
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n"
      "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");

  EXPECT_EQ(client.Read().body, "a");
  EXPECT_EQ(client.Read().status, 400);
  EXPECT_TRUE(client.IsClosedByServer());
}

TEST_F(HttpServerTest, KnowsRoutesMethodsHeadAndOptions) {
  StartServer();
  const std::string rest = " HTTP/1.1\r\nHost: localhost\r\n\r\n";

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
  EXPECT_EQ(Ask("OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 204);
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

  client.Send(
      "HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nHost: "
      "localhost\r\n\r\n");

  EXPECT_EQ(client.Read(true).status, 200);
  EXPECT_EQ(client.Read().body, "{\"status\":\"ok\"}");
}

TEST_F(HttpServerTest, GateComesAfterTheRouteAndBeforeTheBody) {
  StartServer();

  const auto refused =
      Ask("POST /secret HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: "
          "100-continue\r\n\r\n");
  const auto wrong_method = Ask("GET /secret HTTP/1.1\r\nHost: localhost\r\n\r\n");

  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(wrong_method.status, 405);
}

TEST_F(HttpServerTest, ARefusedBodyIsReadPastAndTheConnectionGoesOn) {
  StartServer();
  RawClient client(server_->port());
  const std::string body(1 << 20, 'b');

  client.Send("POST /secret HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n");
  client.Send(body);
  client.Send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");

  EXPECT_EQ(client.Read().status, 401);
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpServerTest, ACompressedBodyIsRefusedAndPlainOnesAreAskedFor) {
  StartServer();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n";
  for (const char* coding : {"gzip", "GZip", "deflate", "br", "gzip, identity"}) {
    const auto reply = Ask(head + "Content-Encoding: " + coding + "\r\n\r\n{}");
    EXPECT_EQ(reply.status, 415) << coding;
    EXPECT_EQ(reply.headers.at("accept-encoding"), "identity");
    EXPECT_NE(reply.body.find("unsupported_media_type"), std::string::npos);
  }
  EXPECT_EQ(Ask(head + "Content-Encoding: identity\r\n\r\n{}").status, 200);
}

TEST_F(HttpServerTest, RefusedHeadsKeepTheirIdAndOrigin) {
  StartServer();

  const auto too_large = Ask(
      "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine\r\nOrigin: http://localhost\r\n"
      "Content-Length: 99999999999\r\n\r\n");
  const auto two_hosts =
      Ask("POST /echo HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine\r\nHost: y\r\n\r\n");

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
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: "
      "100-Continue\r\n\r\n");
  EXPECT_EQ(client.Read().status, 100);
  client.Send("ok");

  EXPECT_EQ(client.Read().body, "ok");
  EXPECT_EQ(Ask("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n"
                "Expect: 100-continue\r\n\r\n")
                .status,
            413);
}

TEST_F(HttpServerTest, TurnsExceptionsAndForgottenRequestsIntoInternalErrors) {
  StartServer();
  const std::string rest = " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";

  const auto thrown = Ask("POST /throw" + rest);
  const auto forgotten = Ask("POST /forget" + rest);

  EXPECT_EQ(thrown.status, 500);
  EXPECT_EQ(thrown.body.find("private"), std::string::npos);
  EXPECT_EQ(forgotten.status, 500);
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
  busy.Send("GET /busy HTTP/1.1\r\nHost: localhost\r\n\r\n");
  entered.wait();

  RawClient client(server.port());
  client.Send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
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
  busy.Send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
  entered.wait();

  RawClient client(server.port());
  client.Send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);

  release.count_down();
  EXPECT_EQ(busy.Read().status, 200);
}

// The task, and the last writer with it, is destroyed while the exception propagates. The request
// must still get the exception's answer, not "no answer".
TEST_F(HttpServerTest, WhatATaskWithTheLastWriterThrowsIsTheAnswer) {
  HttpOptions options;
  options.port = 0;
  options.n_request_threads = 1;
  std::latch release(1);
  std::vector<Route> routes;
  routes.push_back({"GET", "/later",
                    [&](Request, ResponseWriter writer) {
                      writer.Post([&, writer] {
                        release.wait();
                        throw std::runtime_error("private detail");
                      });
                    },
                    Access::kOpen});
  routes.push_back({"GET", "/next", [](Request, ResponseWriter writer) { writer.Json(200, "{}"); },
                    Access::kOpen});
  HttpServer server(options, std::move(routes), TestPolicy());
  server.Start();
  RawClient later(server.port());
  later.Send("GET /later HTTP/1.1\r\nHost: localhost\r\n\r\n");
  RawClient next(server.port());
  next.Send("GET /next HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(next.Read().status, 200);  // the handler's own writer is destroyed

  release.count_down();

  EXPECT_EQ(later.Read().body, "{\"code\":\"internal_error\"}");
}

TEST_F(HttpServerTest, RefusesWhenTheRequestQueueIsFull) {
  HttpOptions options;
  options.n_request_threads = 1;
  options.max_queued_requests = 0;
  StartServer(options);

  const auto reply = Ask("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");

  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_EQ(reply.headers.at("retry-after-ms"), "1000");
}

TEST_F(HttpServerTest, RefusesConnectionsBeyondTheLimit) {
  HttpOptions options;
  options.max_connections = 1;
  StartServer(options);
  RawClient first(server_->port());
  first.Send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(first.Read().status, 200);

  RawClient second(server_->port());
  EXPECT_EQ(second.Read().status, 503);
  EXPECT_TRUE(second.IsClosedByServer());
}

TEST_F(HttpServerTest, EchoesOnlyLocalOriginsWhileNoKeyIsNeeded) {
  StartServer();
  const std::string head = "GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: ";

  const auto local = Ask(head + "http://localhost:3000\r\n\r\n");
  const auto foreign = Ask(head + "https://localhost.evil.example\r\n\r\n");

  EXPECT_EQ(local.headers.at("access-control-allow-origin"), "http://localhost:3000");
  EXPECT_TRUE(local.headers.contains("access-control-expose-headers"));
  EXPECT_FALSE(foreign.headers.contains("access-control-allow-origin"));
}

}  // namespace
}  // namespace tandem::server
