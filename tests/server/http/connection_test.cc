#include <memory>
#include <string>
#include <thread>

#include "tests/server/http/http_server_fixture.h"

namespace tandem::server {
namespace {

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  StartServer();
  RawClient client(server_->port());
  std::string bytes;
  for (int i = 0; i < 60; ++i) {
    const std::string body = std::to_string(i);
    bytes +=
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
        "\r\n\r\n" + body;
  }

  client.Send(bytes);

  for (int i = 0; i < 60; ++i) ASSERT_EQ(client.Read().body, std::to_string(i));
}

TEST_F(HttpServerTest, ClosesWhenAskedAndForHttp10) {
  StartServer();
  RawClient asked(server_->port());
  RawClient old(server_->port());

  asked.Send("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  old.Send("GET /health HTTP/1.0\r\n\r\n");

  EXPECT_EQ(asked.Read().headers.at("connection"), "close");
  EXPECT_TRUE(asked.IsClosedByServer());
  EXPECT_EQ(old.Read().status, 200);
  EXPECT_TRUE(old.IsClosedByServer());
}

TEST_F(HttpServerTest, BytesThatArriveWhileARequestRunsAreItsSuccessors) {
  StartServer();
  RawClient client(server_->port());
  client.Send("GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const ResponseWriter writer = held_.get_future().get();

  client.Send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  writer.Json(200, "\"first\"");

  EXPECT_EQ(client.Read().body, "\"first\"");
  EXPECT_EQ(client.Read().body, "{\"status\":\"ok\"}");
}

TEST_F(HttpServerTest, NoticesAClientThatLeavesWhileItsRequestRuns) {
  StartServer();
  auto client = std::make_unique<RawClient>(server_->port());
  client->Send("GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n");
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
  client.Send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
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
  client.Send("GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const ResponseWriter writer = held_.get_future().get();
  // More bytes than the connection buffers, and more than one read.
  std::string bytes;
  for (int i = 0; i < 2000; ++i) bytes += "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
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
  client.Send("GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const ResponseWriter writer = held_.get_future().get();
  std::string bytes;
  for (int i = 0; i < 2; ++i) bytes += "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

  client.Send(bytes + "GET /health HTTP/1.1\r\nHo");
  EXPECT_FALSE(left_.try_acquire_for(60ms));  // several timeouts long
  writer.Json(200, "{}");
  client.Send("st: localhost\r\n\r\n");

  for (int i = 0; i < 4; ++i) EXPECT_EQ(client.Read().status, 200) << i;
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
  EXPECT_EQ(Ask("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab").status,
            408);
  EXPECT_TRUE(idle.IsClosedByServer());
  used.Send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  used.Read();
  EXPECT_TRUE(used.IsClosedByServer());
}

TEST_F(HttpServerTest, ARunningRequestIsNotIdle) {
  HttpOptions options;
  options.keep_alive_timeout = 10ms;
  options.header_timeout = 10ms;
  StartServer(options);
  RawClient client(server_->port());
  client.Send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EventStream stream = stream_.get_future().get();

  EXPECT_FALSE(left_.try_acquire_for(60ms));  // several timeouts long
  stream.Close();

  EXPECT_TRUE(client.Read().complete);
}

TEST_F(HttpServerTest, DrainsRunningRequestsAndRefusesNewOnes) {
  StartServer();
  RawClient idle(server_->port());
  idle.Send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  idle.Read();
  RawClient client(server_->port());
  client.Send("GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n");
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

TEST_F(HttpServerTest, NewConnectionsAreAnsweredWhileDraining) {
  StartServer();
  RawClient client(server_->port());
  client.Send("GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const ResponseWriter writer = held_.get_future().get();

  server_->Drain();

  const auto watched = Ask("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(watched.status, 200);
  EXPECT_EQ(watched.headers.at("connection"), "close");
  const auto refused = Ask("GET /v1/models/m HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("shutting_down"), std::string::npos);

  writer.Json(200, "1");
  EXPECT_EQ(client.Read().body, "1");
}

TEST_F(HttpServerTest, RequestsBehindARunningOneAreRefusedWhileDraining) {
  StartServer();
  RawClient client(server_->port());
  client.Send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EventStream stream = stream_.get_future().get();
  // The second request has arrived before the drain begins: /health was answered after it was sent.
  client.Send("GET /v1/models/m HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(Ask("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);

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
  held.Send("GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const ResponseWriter writer = held_.get_future().get();
  RawClient streaming(server_->port());
  streaming.Send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
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

}  // namespace
}  // namespace tandem::server
