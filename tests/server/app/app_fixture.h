#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/app/app.h"
#include "tests/server/http/raw_client.h"
#include "tests/support/temporary_dir.h"
#include "tests/support/tiny_model.h"

namespace tandem::server {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

// A whole server with a small random model; tests send requests over sockets.
class AppTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = std::make_unique<tests::TemporaryDir>();
    std::filesystem::create_directory(directory_->path() / "tiny");
    tests::WriteTinyModel(directory_->path() / "tiny", {});
    std::filesystem::create_directory(directory_->path() / "ids");
    tests::TinyModelOptions ids;
    ids.with_tokenizer = false;
    tests::WriteTinyModel(directory_->path() / "ids", ids);
  }
  static void TearDownTestSuite() { directory_.reset(); }

  static AppOptions Defaults() {
    AppOptions options;
    options.http.port = 0;
    options.engine.threads = 1;
    options.engine.max_seqs = 16;
    options.engine.kv_cache_bytes = 32 << 20;
    options.models = {{"", (directory_->path() / "tiny").string()}};
    return options;
  }
  void StartApp(AppOptions options = Defaults()) {
    app_ = std::make_unique<App>(std::move(options));
    app_->Start();
  }

  static std::string Post(const std::string& path, const std::string& body,
                          const std::string& headers = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
           headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  RawClient::Reply Ask(const std::string& bytes) {
    RawClient client(app_->port());
    client.Send(bytes);
    return client.Read();
  }
  RawClient::Reply Get(const std::string& path, const std::string& headers = "") {
    return Ask("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  }
  Json PostJson(const std::string& path, const Json& body, int status = 200) {
    const auto reply = Ask(Post(path, body.dump()));
    EXPECT_EQ(reply.status, status) << reply.body;
    return Json::parse(reply.body);
  }
  std::vector<Json> PostStream(const std::string& path, const Json& body) {
    const auto reply = Ask(Post(path, body.dump()));
    EXPECT_EQ(reply.status, 200) << reply.body;
    std::vector<Json> events;
    size_t at = 0;
    bool done = false;
    while (at < reply.body.size()) {
      const size_t end = reply.body.find("\n\n", at);
      const std::string data = reply.body.substr(at + 6, end - at - 6);
      if (data == "[DONE]") {
        done = true;
      } else {
        events.push_back(Json::parse(data));
      }
      at = end + 2;
    }
    EXPECT_TRUE(done);
    return events;
  }
  engine::EngineStats Stats() { return app_->models().Find(std::nullopt)->engine->stats(); }
  // Spins until the engine has no requests; only the test's timeout limits it.
  void WaitUntilIdle() {
    for (;;) {
      const engine::EngineStats stats = Stats();
      if (stats.requests_running == 0 && stats.requests_waiting == 0 &&
          app_->running_requests() == 0) {
        return;
      }
      std::this_thread::yield();
    }
  }

  static Json Chat(const std::string& text) {
    return {{"model", "tiny"},
            {"messages", {{{"role", "user"}, {"content", text}}}},
            {"max_tokens", 24},
            {"temperature", 0}};
  }

  static inline std::unique_ptr<tests::TemporaryDir> directory_;
  std::unique_ptr<App> app_;
};

}  // namespace tandem::server
