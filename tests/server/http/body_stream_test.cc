#include <string>

#include "tests/server/http/http_server_fixture.h"

// Responses of a known length, sent piece by piece.

namespace tandem::server {
namespace {

class BodyStreamTest : public HttpServerTest {
 protected:
  void StartBodies(int64_t n_bytes, HttpOptions options = {}) {
    options.port = 0;
    std::vector<Route> routes;
    routes.push_back({"GET", "/body",
                      [this, n_bytes](Request, ResponseWriter writer) {
                        writer.OnDisconnect([this] { left_.release(); });
                        Response head;
                        head.content_type = "application/octet-stream";
                        head.headers = {{"x-mine", "1"}};
                        body_.set_value(writer.StartBody(std::move(head), n_bytes));
                      },
                      Access::kOpen});
    server_ = std::make_unique<HttpServer>(options, std::move(routes), TestPolicy());
    server_->Start();
  }
  static constexpr std::string_view kGet = "GET /body HTTP/1.1\r\nHost: localhost\r\n\r\n";

  std::promise<BodyStream> body_;
};

TEST_F(BodyStreamTest, HasItsLengthAndLeavesTheConnectionUsable) {
  StartBodies(6);
  RawClient client(server_->port());
  client.Send(kGet);
  {
    const BodyStream body = body_.get_future().get();
    body_ = {};
    body.Send("abc");
    body.Send("def");
  }
  const auto reply = client.Read();
  EXPECT_EQ(reply.body, "abcdef");
  EXPECT_EQ(reply.headers.at("content-length"), "6");
  EXPECT_EQ(reply.headers.at("x-mine"), "1");
  EXPECT_FALSE(reply.headers.contains("transfer-encoding"));

  client.Send(kGet);
  body_.get_future().get().Send("ghijkl");
  EXPECT_EQ(client.Read().body, "ghijkl");
}

TEST_F(BodyStreamTest, ABodyThatIsGivenUpResetsTheConnection) {
  StartBodies(6);
  RawClient client(server_->port());
  client.Send(kGet);
  body_.get_future().get().Send("abc");

  EXPECT_FALSE(client.Read().complete);
  EXPECT_TRUE(client.IsClosedByServer() || !client.input().empty());
}

TEST_F(BodyStreamTest, SilenceIsNotBrokenByPings) {
  HttpOptions options;
  options.ping_interval = 5ms;
  StartBodies(6, options);
  RawClient client(server_->port());
  client.Send(kGet);
  const BodyStream body = body_.get_future().get();
  body.Send("abc");
  ASSERT_TRUE(client.ReadUntil("abc"));
  std::this_thread::sleep_for(30ms);  // time for pings to arrive; no assertion depends on it
  body.Send("def");

  EXPECT_EQ(client.Read().body, "abcdef");
}

TEST_F(BodyStreamTest, TheProducerIsPausedAndHearsOfClientsThatLeave) {
  HttpOptions options;
  options.max_output_bytes = 10'000;
  StartBodies(100 << 20, options);
  RawClient client(server_->port(), 4096);
  client.Send(kGet);
  const BodyStream body = body_.get_future().get();
  std::counting_semaphore<100> paused{0};
  body.OnBackpressure([&](bool is_paused) {
    if (is_paused) paused.release();
  });
  const std::string piece(64 << 10, 'x');
  while (!paused.try_acquire()) body.Send(piece);
  EXPECT_FALSE(body.disconnected());

  client.Close();

  EXPECT_TRUE(Left());
  EXPECT_TRUE(body.disconnected());
}

TEST_F(BodyStreamTest, HeadGetsTheSameHeadAndTheProducerIsToldThatNobodyListens) {
  StartBodies(6);
  RawClient client(server_->port());
  client.Send("HEAD /body HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const BodyStream body = body_.get_future().get();
  body_ = {};

  EXPECT_EQ(client.Read(true).headers.at("content-length"), "6");
  EXPECT_TRUE(Left());
  EXPECT_TRUE(body.disconnected());
  client.Send(kGet);
  body_.get_future().get().Send("abcdef");
  EXPECT_EQ(client.Read().body, "abcdef");
}

TEST_F(BodyStreamTest, StoppingResetsWhatIsNotComplete) {
  StartBodies(6);
  RawClient client(server_->port());
  client.Send(kGet);
  const BodyStream body = body_.get_future().get();
  body.Send("abc");
  ASSERT_TRUE(client.ReadUntil("abc"));

  server_->Stop();

  EXPECT_TRUE(Left());
  EXPECT_FALSE(client.Read().complete);
  EXPECT_EQ(client.input().find("error"), std::string::npos);
}

}  // namespace
}  // namespace tandem::server
