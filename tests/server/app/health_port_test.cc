// The second listener: /health, /ready and /metrics while the main port is busy.

#include <atomic>
#include <future>
#include <optional>
#include <string>

#include "engine/base/attempt.h"
#include "tests/server/app/app_fixture.h"

namespace tandem::server {
namespace {

class HealthPortTest : public AppTest {
 protected:
  static AppOptions WithHealthPort() {
    AppOptions options = Defaults();
    options.health_port = 0;
    return options;
  }
  // A server whose next answer of /health blocks the thread that makes it.
  void StartBlockable(AppOptions options = WithHealthPort()) {
    options.clock = [this] {
      if (blocks_.exchange(false)) {
        is_blocked_.set_value();
        released_.wait();
      }
      return std::chrono::steady_clock::now();
    };
    StartApp(std::move(options));
  }
  // Leaves the main io thread in a handler until Release.
  void BlockMainIoThread() {
    blocks_ = true;
    blocked_client_ = std::make_unique<RawClient>(app_->port());
    blocked_client_->Send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    is_blocked_.get_future().wait();
    is_held_ = true;
  }
  void Release() {
    is_held_ = false;
    release_.set_value();
  }

  static RawClient::Reply AskPort(uint16_t port, const std::string& method, const std::string& path,
                                  const std::string& headers = "") {
    RawClient client(port);
    client.Send(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
    return client.Read(method == "HEAD");
  }
  RawClient::Reply AskHealthPort(const std::string& path, const std::string& headers = "",
                                 const std::string& method = "GET") {
    return AskPort(*app_->health_port(), method, path, headers);
  }
  // -1: nobody listens.
  static int Connect(uint16_t port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
    close(fd);
    return -1;
  }
  static bool CanConnect(uint16_t port) {
    const int fd = Connect(port);
    if (fd >= 0) close(fd);
    return fd >= 0;
  }
  // Reads an answer to its end, of whatever kind. nullopt: nobody listens.
  static std::optional<std::string> AskIfOpen(uint16_t port, const std::string& path) {
    const int fd = Connect(port);
    if (fd < 0) return std::nullopt;
    const std::string request =
        "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    std::string answer;
    char buffer[4096];
    for (ssize_t n = 0; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(n));
    }
    close(fd);
    return answer;
  }

  void TearDown() override {
    if (is_held_) Release();
    app_.reset();  // before what its clock uses
  }

  std::atomic<bool> blocks_{false};
  bool is_held_ = false;
  std::promise<void> is_blocked_;
  std::promise<void> release_;
  std::shared_future<void> released_ = release_.get_future().share();
  std::unique_ptr<RawClient> blocked_client_;
};

TEST_F(HealthPortTest, AnswersThreePathsAsTheMainPortDoes) {
  StartApp(WithHealthPort());

  for (const char* path : {"/health", "/ready", "/metrics"}) {
    const auto main = AskPort(app_->port(), "GET", path);
    const auto reply = AskHealthPort(path);
    const auto head = AskHealthPort(path, "", "HEAD");

    EXPECT_EQ(main.status, 200) << path;
    EXPECT_EQ(reply.status, 200) << path;
    EXPECT_EQ(reply.headers.at("content-type"), main.headers.at("content-type"));
    EXPECT_FALSE(reply.body.empty()) << path;
    EXPECT_EQ(head.status, 200) << path;
    EXPECT_TRUE(head.body.empty()) << path;
  }
  EXPECT_EQ(AskHealthPort("/health").body, R"({"status":"ok"})");
  EXPECT_EQ(AskHealthPort("/ready").body, R"({"status":"ready"})");
  EXPECT_NE(AskHealthPort("/metrics").body.find("tandem:ready 1"), std::string::npos);
  EXPECT_EQ(app_->health_url(), "http://127.0.0.1:" + std::to_string(*app_->health_port()));
}

TEST_F(HealthPortTest, IsAbsentByDefault) {
  StartApp();

  EXPECT_FALSE(app_->health_port());
  EXPECT_EQ(app_->health_url(), "");
}

TEST_F(HealthPortTest, OtherRequestsAreSentToTheMainPort) {
  StartApp(WithHealthPort());

  for (const char* path : {"/", "/version", "/v1/models", "/admin/models", "/health/"}) {
    const auto reply = AskHealthPort(path);

    EXPECT_EQ(reply.status, 404) << path;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["code"], "unknown_url");
    EXPECT_NE(error["message"].get<std::string>().find("port " + std::to_string(app_->port())),
              std::string::npos)
        << reply.body;
  }
  const auto post = AskHealthPort("/v1/chat/completions", "Content-Length: 0\r\n", "POST");
  EXPECT_EQ(post.status, 404);
  const auto wrong_method = AskHealthPort("/health", "Content-Length: 0\r\n", "POST");
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_EQ(wrong_method.headers.at("allow"), "GET, HEAD, OPTIONS");
}

TEST_F(HealthPortTest, KeysHoldAsOnTheMainPort) {
  AppOptions options = WithHealthPort();
  options.api_keys = {"api"};
  options.metrics_key = "scrape";
  StartApp(std::move(options));

  EXPECT_EQ(AskHealthPort("/health").status, 200);
  EXPECT_EQ(AskHealthPort("/ready").status, 200);
  for (const char* key : {"", "api", "wrong", "scrape"}) {
    const std::string header = "Authorization: Bearer " + std::string(key) + "\r\n";
    const auto main = AskPort(app_->port(), "GET", "/metrics", *key == 0 ? "" : header);
    const auto reply = AskHealthPort("/metrics", *key == 0 ? "" : header);

    EXPECT_EQ(reply.status, main.status) << key;
    const bool shows_keys = reply.body.find("key_id=\"configured\"") != std::string::npos;
    EXPECT_EQ(shows_keys, main.body.find("key_id=\"configured\"") != std::string::npos) << key;
  }
  EXPECT_EQ(AskHealthPort("/metrics").status, 401);
  EXPECT_EQ(AskHealthPort("/metrics", "Authorization: Bearer scrape\r\n").status, 200);
}

TEST_F(HealthPortTest, AnswersWhileAHandlerBlocksTheMainIoThread) {
  StartBlockable();
  BlockMainIoThread();

  for (const char* path : {"/health", "/ready", "/metrics"}) {
    EXPECT_EQ(AskHealthPort(path).status, 200) << path;
  }

  Release();
  EXPECT_EQ(blocked_client_->Read().status, 200);
}

TEST_F(HealthPortTest, HasLimitsOfItsOwn) {
  AppOptions options = WithHealthPort();
  options.http.header_timeout = 500ms;
  StartApp(std::move(options));

  const auto huge = AskHealthPort("/health", "X: " + std::string(40'000, 'x') + "\r\n");
  EXPECT_EQ(huge.status, 431);
  const auto body = AskHealthPort("/health", "Content-Length: 5000\r\n");
  EXPECT_EQ(body.status, 413);
  RawClient slow(*app_->health_port());
  slow.Send("GET /health HTTP/1.1\r\n");
  EXPECT_EQ(slow.Read().status, 408);
  EXPECT_EQ(AskHealthPort("/health").status, 200);
}

TEST_F(HealthPortTest, ItsConnectionsAreCountedApart) {
  AppOptions options = WithHealthPort();
  options.http.max_connections = 2;
  StartApp(std::move(options));
  std::vector<std::unique_ptr<RawClient>> kept;
  for (int i = 0; i < 2; ++i) {
    kept.push_back(std::make_unique<RawClient>(*app_->health_port()));
    kept.back()->Send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ASSERT_EQ(kept.back()->Read().status, 200);
  }

  RawClient third(*app_->health_port());
  EXPECT_EQ(third.Read().status, 503);
  EXPECT_EQ(AskPort(app_->port(), "GET", "/health").status, 200);
}

TEST_F(HealthPortTest, ReadinessFallsFirstAndThePortClosesLast) {
  StartBlockable();
  EXPECT_EQ(AskHealthPort("/ready").status, 200);
  BlockMainIoThread();
  const uint16_t main_port = app_->port();
  const uint16_t health_port = *app_->health_port();

  // The blocked request keeps Stop from ending.
  std::thread stopper([&] { app_->Stop(); });
  while (AskHealthPort("/ready").status == 200) std::this_thread::yield();
  EXPECT_EQ(AskHealthPort("/ready").body, R"({"status":"draining"})");
  EXPECT_EQ(AskHealthPort("/health").status, 200);
  EXPECT_NE(AskHealthPort("/metrics").body.find("tandem:ready 0"), std::string::npos);
  EXPECT_TRUE(CanConnect(main_port));
  Release();
  // Asked in this order, an open main port behind a closed health port is no race of the test.
  while (CanConnect(health_port)) std::this_thread::yield();
  EXPECT_FALSE(CanConnect(main_port));
  stopper.join();

  EXPECT_EQ(blocked_client_->Read().status, 200);
}

// Scrapes go on while Stop destroys models, jobs and files, until the port closes.
TEST_F(HealthPortTest, ScrapesUntilTheEndOfTheServerHarmNobody) {
  AppOptions options = WithHealthPort();
  const tests::TemporaryDir data;
  options.data_dir = data.path();
  options.admin_key = "admin";
  StartApp(std::move(options));
  const uint16_t port = *app_->health_port();
  std::atomic<int> n_scraped{0};
  std::atomic<int> n_broken{0};
  std::vector<std::thread> scrapers;
  for (const char* path : {"/metrics", "/ready", "/health"}) {
    scrapers.emplace_back([&, path] {
      while (const auto answer = AskIfOpen(port, path)) {
        if (answer->starts_with("HTTP/1.1 ")) {
          ++n_scraped;
        } else if (!answer->empty()) {  // the port may close before it reads a request
          ++n_broken;
        }
      }
    });
  }
  while (n_scraped < 30) std::this_thread::yield();

  app_->Stop();

  for (std::thread& scraper : scrapers) scraper.join();
  EXPECT_EQ(n_broken, 0);
  EXPECT_FALSE(AskIfOpen(port, "/health"));
}

TEST_F(HealthPortTest, AnUnusablePortIsNamed) {
  StartApp(WithHealthPort());
  AppOptions taken = Defaults();
  taken.health_port = app_->port();

  const auto error = ErrorOf([&] { App second(std::move(taken)); });

  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kUnavailable);
  EXPECT_NE(std::string(error->what()).find("--health-port"), std::string::npos) << error->what();
}

TEST_F(HealthPortTest, TheMainPortIsNoHealthPort) {
  StartApp();
  const uint16_t free_port = app_->port();
  app_.reset();
  AppOptions options = Defaults();
  options.http.port = free_port;
  options.health_port = free_port;

  const auto error = ErrorOf([&] { App app(std::move(options)); });

  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::server
