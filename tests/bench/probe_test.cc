#include "bench/load/probe.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "bench/load/load_summary.h"
#include "engine/base/attempt.h"

namespace tandem::bench {
namespace {

// Answers the n-th connection with status 200 or, from `failing_from` on, with 503, until the end.
// The first answer takes `first_pause`.
class PlainServer {
 public:
  explicit PlainServer(int failing_from, std::chrono::milliseconds first_pause = {})
      : listener_(socket(AF_INET, SOCK_STREAM, 0)),
        failing_from_(failing_from),
        first_pause_(first_pause) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_.fd(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_.fd(), 16), 0);
    getsockname(listener_.fd(), reinterpret_cast<sockaddr*>(&address), &size);
    target_ = ParseTarget("http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)), "");
    thread_ = std::thread([this] { Serve(); });
  }
  ~PlainServer() {
    shutdown(listener_.fd(), SHUT_RDWR);  // ends accept
    thread_.join();
  }

  const HttpTarget& target() const { return target_; }
  int n_answered() const { return n_answered_; }
  std::string first_request() const { return first_request_; }

 private:
  void Serve() {
    while (true) {
      const Socket connection(accept(listener_.fd(), nullptr, nullptr));
      if (!connection) return;
      std::string request;
      char buffer[1024];
      while (!request.ends_with("\r\n\r\n")) {
        const ssize_t got = recv(connection.fd(), buffer, sizeof buffer, 0);
        if (got <= 0) return;
        request.append(buffer, static_cast<size_t>(got));
      }
      if (n_answered_ == 0) first_request_ = request;
      if (n_answered_ == 0) std::this_thread::sleep_for(first_pause_);
      const std::string status = n_answered_ >= failing_from_ ? "503 Busy" : "200 OK";
      const std::string answer = "HTTP/1.1 " + status + "\r\nContent-Length: 2\r\n\r\nok";
      send(connection.fd(), answer.data(), answer.size(), MSG_NOSIGNAL);
      ++n_answered_;
    }
  }

  Socket listener_;
  const int failing_from_;
  const std::chrono::milliseconds first_pause_;
  HttpTarget target_;
  std::string first_request_;  // complete before n_answered_ is 1
  std::atomic<int> n_answered_ = 0;
  std::thread thread_;
};

ProbeSummary ProbeUntil(PlainServer& server, int answers) {
  Probe probe(server.target(), {.path = "/health", .interval_s = 0.001, .timeout_s = 5});
  while (server.n_answered() < answers) std::this_thread::yield();
  return probe.Stop();
}

TEST(Probe, AsksThePathAgainAndAgain) {
  PlainServer server(1 << 30);

  const ProbeSummary summary = ProbeUntil(server, 20);

  EXPECT_TRUE(server.first_request().starts_with("GET /health HTTP/1.1\r\n"));
  EXPECT_GE(summary.ok, 20);
  EXPECT_EQ(summary.failed, 0);
  EXPECT_GT(summary.p50, 0);
  EXPECT_LE(summary.p50, summary.p99);
  EXPECT_LE(summary.p99, summary.p999);
  EXPECT_LE(summary.p999, summary.max);
}

// Request n was due n ms after the first one, which took 200 ms.
TEST(Probe, RequestsThatWereDueMeanwhileHaveWaitedForTheServer) {
  PlainServer server(1 << 30, std::chrono::milliseconds(200));

  const ProbeSummary summary = ProbeUntil(server, 20);

  EXPECT_GE(summary.max, 200);
  if (summary.ok <= 40) {
    EXPECT_GE(summary.p50, 150);
  }
}

TEST(Probe, AsksAnotherPortWithoutTheKey) {
  PlainServer server(1 << 30);
  HttpTarget loaded = server.target();
  loaded.port = "1";
  loaded.prefix = "/gateway";
  loaded.api_key = "secret";

  Probe probe(loaded, {.path = server.target().url() + "/ready", .interval_s = 0.001});
  while (server.n_answered() < 1) std::this_thread::yield();
  const ProbeSummary summary = probe.Stop();

  EXPECT_TRUE(server.first_request().starts_with("GET /ready HTTP/1.1\r\n"));
  EXPECT_EQ(server.first_request().find("secret"), std::string::npos);
  EXPECT_EQ(summary.path, server.target().url() + "/ready");
  EXPECT_EQ(summary.failed, 0);
}

TEST(Probe, RefusesWhatIsNeitherAPathNorAUrlWithOne) {
  for (const char* path : {"", "health", "http://127.0.0.1:1", "https://127.0.0.1:1/health"}) {
    const auto fault = ErrorOf([&] { Probe probe(HttpTarget(), {.path = path}); });
    ASSERT_TRUE(fault) << path;
    EXPECT_EQ(fault->code(), ErrorCode::kInvalidArgument) << path;
  }
}

TEST(Probe, CountsFailuresApartAndNamesTheFirst) {
  PlainServer server(5);

  const ProbeSummary summary = ProbeUntil(server, 10);

  EXPECT_EQ(summary.ok, 5);
  EXPECT_GE(summary.failed, 5);
  EXPECT_EQ(summary.fault, "status 503");
}

TEST(Probe, SurvivesAServerThatIsGone) {
  HttpTarget target;
  {
    PlainServer server(1 << 30);
    target = server.target();
    ProbeUntil(server, 1);
  }
  Probe probe(target, {.path = "/health", .interval_s = 0.001, .timeout_s = 5});

  const ProbeSummary summary = probe.Stop();

  EXPECT_EQ(summary.ok, 0);
  EXPECT_GE(summary.failed, 1);
  EXPECT_FALSE(summary.fault.empty());
  EXPECT_EQ(summary.max, 0);
}

TEST(Probe, IsPartOfTheSummary) {
  LoadSummary summary;
  summary.probes.push_back(ProbeSummary{.path = "/health",
                                        .ok = 7,
                                        .failed = 1,
                                        .fault = "status 503",
                                        .p50 = 1,
                                        .p99 = 2,
                                        .p999 = 3,
                                        .max = 4});

  EXPECT_NE(Describe(summary).find("p50 1.00  p99 2.00  p99.9 3.00  max 4.00 ms (of 7)"),
            std::string::npos);
  EXPECT_NE(Describe(summary).find("1: status 503"), std::string::npos);
  EXPECT_NE(ToJson(summary).find("\"p999\": 3.0"), std::string::npos);
}

}  // namespace
}  // namespace tandem::bench
