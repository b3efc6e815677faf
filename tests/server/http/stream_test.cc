#include <atomic>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/http/http_server_fixture.h"

namespace tandem::server {
namespace {

TEST_F(HttpServerTest, StreamsEventsAndKeepsTheConnection) {
  StartServer();
  RawClient client(server_->port());

  client.Send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
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
  client.Send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
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

  client.Send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
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

  client.Send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EventStream stream = stream_.get_future().get();

  EXPECT_TRUE(client.ReadUntil(": ping\n\n"));
}

TEST_F(HttpServerTest, TellsTheProducerToPauseForASlowReaderAndToGoOn) {
  HttpOptions options;
  options.max_output_bytes = 64 << 10;
  StartServer(options);
  RawClient client(server_->port(), 4096);
  client.Send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
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
  client.Send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EventStream stream = stream_.get_future().get();
  std::atomic<bool> paused{false};
  stream.OnBackpressure([&](bool is_paused) { paused = is_paused; });

  // The kernel's buffers hold megabytes before anything stalls.
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
  client.Send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EventStream stream = stream_.get_future().get();

  const std::string line(8000, 'x');
  for (int i = 0; !stream.disconnected() && i < 100'000; ++i) stream.Send(line);

  EXPECT_TRUE(Left());
  EXPECT_FALSE(client.Read().complete);  // the connection is reset, not left open
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
    clients.back()->Send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
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
