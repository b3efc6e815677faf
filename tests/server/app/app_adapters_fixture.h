#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "tests/server/app/app_fixture.h"
#include "tests/support/adapters.h"

namespace tandem::server {

using Faulty = std::pair<int, std::string>;

// A server whose adapters and aliases change while it runs.
class AppAdaptersTest : public AppTest {
 protected:
  static constexpr const char* kAdmin = "Authorization: Bearer root\r\n";

  static void SetUpTestSuite() {
    AppTest::SetUpTestSuite();
    const std::filesystem::path root = directory_->path();
    tests::WriteRandomAdapter(root / "tiny", 4, 1, root / "one");
    tests::WriteRandomAdapter(root / "tiny", 8, 2, root / "two");
    tests::TinyModelOptions wider;
    wider.n_layers = 3;
    std::filesystem::create_directory(root / "deeper");
    tests::WriteTinyModel(root / "deeper", wider);
    tests::WriteRandomAdapter(root / "deeper", 4, 1, root / "of-another");
  }
  AppOptions WithAdmin() {
    AppOptions options = Defaults();
    options.admin_key = "root";
    options.data_dir = scratch_.path() / "data";
    options.model_root = directory_->path();
    return options;
  }
  RawClient::Reply Admin(const std::string& path, const Json& body) {
    return Ask(Post(path, body.dump(), kAdmin));
  }
  RawClient::Reply AdminWithout(const std::string& method, const std::string& path) {
    return Ask(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + kAdmin + "\r\n");
  }
  RawClient::Reply Put(const std::string& path, const Json& body) {
    std::string text = Post(path, body.dump(), kAdmin);
    return Ask("PUT" + text.substr(4));
  }
  Json Load(const std::string& name, const std::string& path, bool replace = false) {
    const auto reply =
        Admin("/admin/adapters/load", {{"name", name}, {"path", path}, {"replace", replace}});
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }
  // The reply to a greedy chat with its log-probabilities: the bits of the model's output.
  std::string Says(const std::string& model) {
    Json body = Chat("hello");
    body["model"] = model;
    body["logprobs"] = true;
    const Json answer = PostJson("/v1/chat/completions", body);
    return answer["choices"].dump();
  }
  // Status and error code.
  static std::pair<int, std::string> Fault(const RawClient::Reply& reply) {
    const Json body = Json::parse(reply.body, nullptr, false);
    if (!body.is_object() || !body.contains("error")) return {reply.status, ""};
    return {reply.status, body["error"]["code"].get<std::string>()};
  }
  static Json Member(const RawClient::Reply& reply, const std::string& name) {
    return Json::parse(reply.body)[name];
  }

  tests::TemporaryDir scratch_;
};

}  // namespace tandem::server
