#include "server/http/body_sink.h"

#include <functional>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string>
#include <vector>

#include "tests/server/http/http_server_fixture.h"

namespace tandem::server {
namespace {

// Shared by a test and its sink: the received bytes, and the sink's events.
struct Taken {
  std::mutex mutex;  // guards the next four
  std::string bytes;
  std::function<void()> has_room;
  size_t n_full = 0;
  bool refuses_more = false;
  std::counting_semaphore<100> gone{0};
  std::counting_semaphore<100> full{0};
};

class TestSink : public BodySink {
 public:
  TestSink(Taken& taken, std::function<void()> has_room) : taken_(taken) {
    const std::lock_guard lock(taken_.mutex);
    taken_.has_room = std::move(has_room);
  }
  ~TestSink() override { taken_.gone.release(); }
  bool Write(std::string_view bytes) override {
    const std::lock_guard lock(taken_.mutex);
    taken_.bytes += bytes;
    if (!taken_.refuses_more) return true;
    if (++taken_.n_full == 1) taken_.full.release();
    return false;
  }

 private:
  Taken& taken_;
};

class BodySinkTest : public HttpServerTest {
 protected:
  static HttpOptions ShortBodies() {
    HttpOptions options;
    options.max_body_bytes = 1000;
    return options;
  }
  void StartSinks(HttpOptions options = ShortBodies()) {
    options.port = 0;
    std::vector<Route> routes;
    Route upload{"POST", "/upload",
                 [](Request request, ResponseWriter writer) {
                   writer.Text(200, request.body_sink ? "sink" : "body:" + request.body);
                 },
                 Access::kOpen};
    upload.open_body = [this](const Request& head, std::function<void()> has_room) {
      if (head.FindHeader("x-bad")) throw std::runtime_error("refused");
      return std::make_shared<TestSink>(taken_, std::move(has_room));
    };
    upload.max_body_bytes = 1 << 20;
    Route secret = upload;
    secret.pattern = "/secret";
    secret.access = Access::kAdminKey;
    routes.push_back(std::move(upload));
    routes.push_back(std::move(secret));
    routes.push_back(
        {"POST", "/echo",
         [](Request request, ResponseWriter writer) { writer.Text(200, request.body); },
         Access::kOpen});
    server_ = std::make_unique<HttpServer>(options, std::move(routes), TestPolicy());
    server_->Start();
  }
  static std::string Head(const std::string& path, size_t n, const std::string& more = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + more +
           "Content-Length: " + std::to_string(n) + "\r\n\r\n";
  }
  std::string TakenBytes() {
    const std::lock_guard lock(taken_.mutex);
    return taken_.bytes;
  }

  Taken taken_;
};

TEST_F(BodySinkTest, TakesABodyThatIsLongerThanOthersMayBe) {
  StartSinks();
  const std::string body(700'000, 'x');
  RawClient client(server_->port());

  client.Send(Head("/upload", body.size()) + body + Head("/echo", 2) + "ok");

  EXPECT_EQ(client.Read().body, "sink");
  EXPECT_EQ(client.Read().body, "ok");
  EXPECT_EQ(TakenBytes(), body);
}

TEST_F(BodySinkTest, TakesChunks) {
  StartSinks();
  RawClient client(server_->port());

  client.Send(
      "POST /upload HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n" +
      Head("/echo", 2) + "ok");

  EXPECT_EQ(client.Read().body, "sink");
  EXPECT_EQ(client.Read().body, "ok");
  EXPECT_EQ(TakenBytes(), "abcdefg");
}

TEST_F(BodySinkTest, ABodyThatCameWithItsHeadIsHandedOverWhole) {
  StartSinks();

  EXPECT_EQ(Ask(Head("/upload", 3) + "abc").body, "body:abc");
}

TEST_F(BodySinkTest, LimitsAreTheRoutesOwn) {
  StartSinks();

  EXPECT_EQ(Ask(Head("/upload", (1 << 20) + 1)).status, 413);
  EXPECT_EQ(Ask(Head("/echo", 1001)).status, 413);
  EXPECT_EQ(Ask("POST /upload HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                "100001\r\n")
                .status,
            413);

  HttpOptions generous;
  generous.max_body_bytes = 10 << 20;
  StartSinks(generous);
  EXPECT_EQ(Ask(Head("/upload", (1 << 20) + 1)).status, 413);
}

TEST_F(BodySinkTest, ReadsNoMoreUntilThereIsRoom) {
  StartSinks();
  taken_.refuses_more = true;
  const std::string body(900'000, 'y');
  RawClient client(server_->port());
  std::thread sender([&] { client.Send(Head("/upload", body.size()) + body); });
  ASSERT_TRUE(taken_.full.try_acquire_for(10s));

  // Each call accepts one piece, regardless of how much the socket holds.
  for (size_t n_calls = 0;; ++n_calls) {
    size_t before = 0;
    std::function<void()> has_room;
    {
      const std::lock_guard lock(taken_.mutex);
      before = taken_.bytes.size();
      EXPECT_LE(taken_.n_full, n_calls + 1);
      if (before >= body.size() / 2) taken_.refuses_more = false;
      has_room = taken_.has_room;
    }
    has_room();
    if (before >= body.size() / 2) break;
    while (TakenBytes().size() == before) std::this_thread::yield();
  }

  sender.join();
  EXPECT_EQ(client.Read().body, "sink");
  EXPECT_EQ(TakenBytes(), body);
}

TEST_F(BodySinkTest, AClientThatLeavesIsSeenInTheMiddleAndWhileNobodyReads) {
  StartSinks();
  {
    RawClient client(server_->port());
    client.Send(Head("/upload", 100) + "abc");
    while (TakenBytes() != "abc") std::this_thread::yield();
  }
  EXPECT_TRUE(taken_.gone.try_acquire_for(10s));

  taken_.refuses_more = true;
  {
    RawClient client(server_->port());
    client.Send(Head("/upload", 100'000) + std::string(20'000, 'z'));
    ASSERT_TRUE(taken_.full.try_acquire_for(10s));
  }
  EXPECT_TRUE(taken_.gone.try_acquire_for(10s));
}

TEST_F(BodySinkTest, RefusedBodiesOpenNoSinkAndLeaveTheConnectionUsable) {
  StartSinks();
  const std::string body(200'000, 'x');
  RawClient client(server_->port());

  client.Send(Head("/secret", body.size()) + body + Head("/upload", body.size(), "x-bad: 1\r\n") +
              body + Head("/echo", 2) + "ok");

  EXPECT_EQ(client.Read().status, 401);
  EXPECT_EQ(client.Read().status, 500);
  EXPECT_EQ(client.Read().body, "ok");
  EXPECT_EQ(TakenBytes(), "");
}

TEST_F(BodySinkTest, FormsOfForeignPagesAreRefused) {
  StartSinks();

  EXPECT_EQ(Ask(Head("/upload", 1, "Origin: https://evil.example\r\n") + "x").status, 403);
  EXPECT_EQ(Ask(Head("/upload", 1, "Origin: http://localhost:3000\r\n") + "x").status, 200);
}

TEST_F(BodySinkTest, LeaveToSendIsGivenOrRefusedAtOnce) {
  StartSinks();
  RawClient client(server_->port());
  client.Send(Head("/upload", 3, "Expect: 100-continue\r\n"));
  EXPECT_EQ(client.Read().status, 100);
  client.Send("abc");
  EXPECT_EQ(client.Read().body, "sink");

  EXPECT_EQ(Ask(Head("/upload", 3, "x-bad: 1\r\nExpect: 100-continue\r\n")).status, 500);
}

TEST_F(BodySinkTest, ABodyThatStandsStillTimesOut) {
  HttpOptions options = ShortBodies();
  options.body_idle_timeout = 50ms;
  StartSinks(options);

  EXPECT_EQ(Ask(Head("/upload", 100) + "abc").status, 408);
  EXPECT_TRUE(taken_.gone.try_acquire_for(10s));
}

}  // namespace
}  // namespace tandem::server
