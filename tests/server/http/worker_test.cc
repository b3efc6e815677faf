// Handlers that take minutes: the threads that run them, and when they end.

#include <latch>

#include "tests/server/http/http_server_fixture.h"

namespace tandem::server {
namespace {

class WorkerTest : public testing::Test {
 protected:
  // `/long` works until its request is over.
  void Start() {
    HttpOptions options;
    options.port = 0;
    options.n_request_threads = 1;
    options.linger_timeout = 10ms;
    std::vector<Route> routes;
    routes.push_back({"GET", "/long",
                      [this](Request, ResponseWriter writer) {
                        entered_.count_down();
                        while (!writer.is_over()) std::this_thread::yield();
                        ended_.release();
                      },
                      Access::kOpen, RunsOn::kWorker});
    routes.push_back({"GET", "/short",
                      [](Request, ResponseWriter writer) { writer.Json(200, "{}"); },
                      Access::kOpen});
    server_ = std::make_unique<HttpServer>(options, std::move(routes), TestPolicy());
    server_->Start();
  }

  std::latch entered_{1};
  std::binary_semaphore ended_{0};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(WorkerTest, TheOnlyRequestThreadIsFreeWhileTheWorkerWorks) {
  Start();
  RawClient busy(server_->port());
  busy.Send("GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n");
  entered_.wait();

  RawClient other(server_->port());
  other.Send("GET /short HTTP/1.1\r\nHost: localhost\r\n\r\n");

  EXPECT_EQ(other.Read().status, 200);
}

TEST_F(WorkerTest, AHandlerLearnsThatItsClientHasLeft) {
  Start();
  {
    RawClient busy(server_->port());
    busy.Send("GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n");
    entered_.wait();
  }
  EXPECT_TRUE(ended_.try_acquire_for(10s));
}

TEST_F(WorkerTest, AServerStopsWhileAHandlerWorksAndAnswersItsClient) {
  Start();
  RawClient busy(server_->port());
  busy.Send("GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n");
  entered_.wait();

  server_->Stop();

  EXPECT_TRUE(ended_.try_acquire());
  EXPECT_EQ(busy.Read().status, 503);
}

}  // namespace
}  // namespace tandem::server
