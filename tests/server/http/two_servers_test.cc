// Two servers of one process: the one for health checks shares no thread with the other.

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <latch>
#include <set>

#include "engine/base/attempt.h"
#include "tests/server/http/http_server_fixture.h"

namespace tandem::server {
namespace {

constexpr const char* kAskHealth = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

HttpOptions FreePort(const std::string& thread_names) {
  HttpOptions options;
  options.port = 0;
  options.thread_names = thread_names;
  options.n_request_threads = 1;
  options.linger_timeout = 10ms;
  return options;
}

Route Quick(const std::string& path, RunsOn runs_on) {
  return {"GET", path, [](Request, ResponseWriter writer) { writer.Json(200, "{}"); },
          Access::kOpen, runs_on};
}

std::set<std::string> ThreadNames() {
  std::set<std::string> names;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    names.insert(name);
  }
  return names;
}

TEST(TwoServers, OneAnswersWhileAHandlerBlocksTheIoThreadOfTheOther) {
  std::latch entered{1};
  std::latch release{1};
  std::vector<Route> routes;
  routes.push_back({"GET", "/block",
                    [&](Request, ResponseWriter writer) {
                      entered.count_down();
                      release.wait();
                      writer.Json(200, "{}");
                    },
                    Access::kOpen, RunsOn::kIoThread});
  HttpServer blocked(FreePort("tandem"), std::move(routes), TestPolicy());
  HttpServer health(FreePort("health"),
                    {Quick("/health", RunsOn::kIoThread), Quick("/metrics", RunsOn::kRequestPool)},
                    TestPolicy());
  blocked.Start();
  health.Start();
  RawClient waiting(blocked.port());
  waiting.Send("GET /block HTTP/1.1\r\nHost: localhost\r\n\r\n");
  entered.wait();

  for (const char* path : {"/health", "/metrics"}) {
    RawClient client(health.port());
    client.Send("GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(client.Read().status, 200) << path;
  }
  release.count_down();

  EXPECT_EQ(waiting.Read().status, 200);
}

TEST(TwoServers, ThreadsAreNamedAfterTheirServerAndOnlyTheNeededOnesRun) {
  HttpServer first(FreePort("first"), {Quick("/a", RunsOn::kWorker)}, TestPolicy());
  HttpServer second(FreePort("second"), {Quick("/a", RunsOn::kIoThread)}, TestPolicy());
  first.Start();
  second.Start();
  for (const HttpServer* server : {&first, &second}) {
    RawClient client(server->port());
    client.Send("GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(client.Read().status, 200);
  }

  const std::set<std::string> names = ThreadNames();

  EXPECT_TRUE(names.contains("first-io"));
  EXPECT_TRUE(names.contains("first-worker-0"));
  EXPECT_TRUE(names.contains("second-io"));
  EXPECT_FALSE(names.contains("second-worker-0"));
}

TEST(TwoServers, ATakenPortIsReportedWithTheFlagThatSetsIt) {
  HttpServer first(FreePort("first"), {}, TestPolicy());
  HttpOptions options = FreePort("second");
  options.port = first.port();
  options.port_flag = "--health-port";

  const auto error = ErrorOf([&] { HttpServer second(options, {}, TestPolicy()); });

  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kUnavailable);
  EXPECT_NE(std::string(error->what()).find("--health-port"), std::string::npos) << error->what();
}

// Descriptors of this process whose peer is the local port `port`: the server's ends.
std::vector<int> ServerEndsOf(uint16_t port) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  std::vector<int> found;
  for (int fd = 0; fd < static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 4096)); ++fd) {
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.sin_family == AF_INET && ntohs(peer.sin_port) == port) found.push_back(fd);
  }
  return found;
}

int OptionOf(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(getsockopt(fd, level, name, &value, &size), 0);
  return value;
}

TEST(TwoServers, ConnectionsHaveTheOptionsOfTheirServer) {
  HttpOptions options = FreePort("tandem");
  options.send_buffer_bytes = 64 << 10;
  options.write_timeout = 120'000ms;
  HttpServer server(options, {Quick("/health", RunsOn::kIoThread)}, TestPolicy());
  server.Start();
  RawClient client(server.port());
  client.Send(kAskHealth);
  ASSERT_EQ(client.Read().status, 200);

  const std::vector<int> ends = ServerEndsOf(client.local_port());

  ASSERT_EQ(ends.size(), 1);
  EXPECT_EQ(OptionOf(ends[0], SOL_SOCKET, SO_SNDBUF), 2 * options.send_buffer_bytes);  // Linux
  EXPECT_NE(OptionOf(ends[0], SOL_SOCKET, SO_KEEPALIVE), 0);
  EXPECT_NE(OptionOf(ends[0], IPPROTO_TCP, TCP_NODELAY), 0);
  EXPECT_EQ(OptionOf(ends[0], IPPROTO_TCP, TCP_KEEPIDLE), 30);
  EXPECT_EQ(OptionOf(ends[0], IPPROTO_TCP, TCP_KEEPINTVL), 10);
  EXPECT_EQ(OptionOf(ends[0], IPPROTO_TCP, TCP_KEEPCNT), 3);
  EXPECT_EQ(OptionOf(ends[0], IPPROTO_TCP, TCP_USER_TIMEOUT), 120'000);
}

}  // namespace
}  // namespace tandem::server
