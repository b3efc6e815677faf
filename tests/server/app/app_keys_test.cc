#include <string>
#include <vector>

#include "server/keys/key_store.h"
#include "tests/server/app/app_fixture.h"

namespace tandem::server {
namespace {

// A server whose keys lie in a database.
class AppKeysTest : public AppTest {
 protected:
  AppOptions WithKeys() {
    AppOptions options = Defaults();
    options.admin_key = "root";
    options.data_dir = scratch_.path() / "data";
    options.keys_interval = 5ms;
    return options;
  }
  static std::string With(const std::string& key) {
    return key.empty() ? "" : "Authorization: Bearer " + key + "\r\n";
  }
  RawClient::Reply AskAs(const std::string& key, const std::string& method,
                         const std::string& path) {
    return Ask(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + With(key) + "\r\n");
  }
  Json CreateKey(const std::string& name, const std::vector<std::string>& scopes) {
    const auto reply =
        Ask(Post("/admin/keys", Json{{"name", name}, {"scopes", scopes}}.dump(), With("root")));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }
  std::string Upload(const std::string& key) {
    const std::string body =
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nfine-tune\r\n--b\r\n"
        "Content-Disposition: form-data; name=\"file\"; "
        "filename=\"x.jsonl\"\r\n\r\n{}\r\n--b--\r\n";
    const auto reply = Ask("POST /v1/files HTTP/1.1\r\nHost: localhost\r\n" + With(key) +
                           "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: " +
                           std::to_string(body.size()) + "\r\n\r\n" + body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body)["id"];
  }
  std::vector<std::string> FilesOf(const std::string& key) {
    const Json list = Json::parse(AskAs(key, "GET", "/v1/files").body);
    std::vector<std::string> ids;
    for (const Json& file : list["data"]) ids.push_back(file["id"]);
    return ids;
  }
  static std::string CodeOf(const RawClient::Reply& reply) {
    return Json::parse(reply.body)["error"]["code"];
  }

  tests::TemporaryDir scratch_;
};

TEST_F(AppKeysTest, AKeyOpensTheRoutesOfItsScopesUntilItIsRevoked) {
  StartApp(WithKeys());
  EXPECT_EQ(AskAs("", "GET", "/v1/models").status, 200);
  const Json infer = CreateKey("infer", {"infer"});
  const std::string infer_key = infer["key"];
  const std::string train_key = CreateKey("train", {"train"})["key"];

  EXPECT_EQ(AskAs("", "GET", "/v1/models").status, 401);
  EXPECT_EQ(AskAs(infer_key, "GET", "/v1/models").status, 200);
  EXPECT_EQ(AskAs(train_key, "GET", "/v1/files").status, 200);
  for (const auto& reply :
       {AskAs(infer_key, "GET", "/v1/files"), AskAs(train_key, "GET", "/v1/models"),
        AskAs(infer_key, "DELETE", "/v1/models/x"), AskAs(train_key, "GET", "/admin/keys")}) {
    EXPECT_EQ(reply.status, 403);
    EXPECT_EQ(CodeOf(reply), "insufficient_permissions");
  }

  const auto revoked = AskAs("root", "DELETE", "/admin/keys/" + infer["id"].get<std::string>());
  EXPECT_EQ(revoked.status, 200) << revoked.body;
  const auto refused = AskAs(infer_key, "GET", "/v1/models");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.body, AskAs("tk-" + std::string(64, '0'), "GET", "/v1/models").body);
  EXPECT_EQ(AskAs("root", "DELETE", "/admin/keys/nobody").status, 404);
}

TEST_F(AppKeysTest, ARunningServerNoticesTheKeysOfAnotherProcess) {
  StartApp(WithKeys());
  KeyStore shell(scratch_.path() / "data" / "keys.db");
  const std::string key = shell.Create({"late", {Scope::kInfer}, {}}).key;
  while (AskAs("", "GET", "/v1/models").status != 401) std::this_thread::yield();
  EXPECT_EQ(AskAs(key, "GET", "/v1/models").status, 200);

  shell.Revoke("late");
  while (AskAs(key, "GET", "/v1/models").status != 401) std::this_thread::yield();
}

TEST_F(AppKeysTest, TheListCountsUseAndShowsNoKey) {
  StartApp(WithKeys());
  const std::string key = CreateKey("alice", {"infer"})["key"];
  ASSERT_EQ(Ask(Post("/v1/chat/completions", Chat("hello").dump(), With(key))).status, 200);
  WaitUntilIdle();

  const std::string text = AskAs("root", "GET", "/admin/keys").body;
  EXPECT_EQ(text.find(key), std::string::npos);
  const Json usage = Json::parse(text)["data"][0]["usage"];
  EXPECT_EQ(usage["requests"], 1);
  EXPECT_GT(usage["prompt_tokens"], 0);
  EXPECT_GT(usage["generation_tokens"], 0);
  const std::string seen = AskAs("root", "GET", "/metrics").body;
  EXPECT_NE(seen.find("key_name=\"alice\"} 1"), std::string::npos) << seen;
  for (const std::string& reader : {std::string(), key}) {
    const std::string hidden = AskAs(reader, "GET", "/metrics").body;
    EXPECT_EQ(hidden.find("alice"), std::string::npos);
    EXPECT_NE(hidden.find("key_requests_total{key_id=\"other\",key_name=\"other\"}"),
              std::string::npos);
  }
}

TEST_F(AppKeysTest, BadKeysAreRefusedWithTheirField) {
  StartApp(WithKeys());
  const auto refused = [&](const Json& body) {
    const auto reply = Ask(Post("/admin/keys", body.dump(), With("root")));
    EXPECT_EQ(reply.status, 400) << reply.body;
    return Json::parse(reply.body)["error"]["param"].get<std::string>();
  };
  EXPECT_EQ(refused({{"scopes", {"infer"}}}), "name");
  EXPECT_EQ(refused({{"name", "a\nb"}, {"scopes", {"infer"}}}), "name");
  EXPECT_EQ(refused({{"name", "a"}}), "scopes");
  EXPECT_EQ(refused({{"name", "a"}, {"scopes", Json::array()}}), "scopes");
  EXPECT_EQ(refused({{"name", "a"}, {"scopes", {"root"}}}), "scopes");
  EXPECT_EQ(refused({{"name", "a"}, {"scopes", "infer"}}), "scopes");
  EXPECT_EQ(refused({{"name", "a"}, {"scopes", {"infer"}}, {"expires_after_s", 0}}),
            "expires_after_s");
  EXPECT_EQ(refused({{"name", "a"}, {"scopes", {"infer"}}, {"expires", 5}}), "expires");
  CreateKey("a", {"infer"});
  EXPECT_EQ(Ask(Post("/admin/keys", R"({"name":"a","scopes":["infer"]})", With("root"))).status,
            409);
}

TEST_F(AppKeysTest, AKeyWithTheScopeAdminOpensAdministrationFromTheStart) {
  AppOptions options = WithKeys();
  options.admin_key.reset();
  const std::string key =
      KeyStore(scratch_.path() / "data" / "keys.db").Create({"ops", {Scope::kAdmin}, {}}).key;
  StartApp(std::move(options));

  EXPECT_EQ(AskAs(key, "GET", "/admin/keys").status, 200);
  EXPECT_EQ(AskAs(key, "GET", "/admin/adapters").status, 200);
  EXPECT_EQ(AskAs(key, "GET", "/metrics").status, 200);
  EXPECT_EQ(AskAs(key, "GET", "/v1/models").status, 403);
  EXPECT_EQ(AskAs("", "GET", "/admin/keys").status, 401);
}

TEST_F(AppKeysTest, ManagedKeysAllowAnAddressThatOtherMachinesReach) {
  AppOptions options = WithKeys();
  options.http.host = "0.0.0.0";
  EXPECT_THROW(App app(options), Error);
  KeyStore(scratch_.path() / "data" / "keys.db").Create({"a", {Scope::kInfer}, {}});
  EXPECT_NO_THROW(App app(options));
}

TEST_F(AppKeysTest, WithIsolationAKeySeesOnlyItsOwnFiles) {
  for (const bool isolated : {false, true}) {
    SCOPED_TRACE(isolated);
    AppOptions options = WithKeys();
    options.data_dir = scratch_.path() / (isolated ? "isolated" : "shared");
    options.isolate_keys = isolated;
    StartApp(options);
    const std::string nobodys = Upload("");
    const std::string a = CreateKey("a", {"train"})["key"];
    const std::string b = CreateKey("b", {"train"})["key"];
    const std::string file = Upload(a);

    EXPECT_EQ(FilesOf(a), (std::vector<std::string>{file, nobodys}));
    EXPECT_EQ(FilesOf("root"), (std::vector<std::string>{file, nobodys}));
    EXPECT_EQ(FilesOf(b).size(), isolated ? 1u : 2u);
    EXPECT_EQ(AskAs(b, "GET", "/v1/files/" + file).status, isolated ? 404 : 200);
    EXPECT_EQ(AskAs(b, "GET", "/v1/files/" + file + "/content").status, isolated ? 404 : 200);
    EXPECT_EQ(AskAs(b, "GET", "/v1/files/" + nobodys).status, 200);
    if (isolated) {
      const auto refused = AskAs(b, "DELETE", "/v1/files/" + file);
      EXPECT_EQ(refused.status, 404);
      EXPECT_EQ(CodeOf(refused), "file_not_found");
      const Json job = {{"model", "tiny"}, {"training_file", file}};
      const auto created = Ask(Post("/v1/fine_tuning/jobs", job.dump(), With(b)));
      EXPECT_EQ(created.status, 404) << created.body;
      EXPECT_EQ(CodeOf(created), "file_not_found");
      // The owner is in the database, not in the memory of this server.
      app_.reset();
      StartApp(options);
      EXPECT_EQ(AskAs(b, "GET", "/v1/files/" + file).status, 404);
      EXPECT_EQ(AskAs("root", "GET", "/v1/files/" + file).status, 200);
    }
    EXPECT_EQ(AskAs(a, "DELETE", "/v1/files/" + file).status, 200);
    app_.reset();
  }
}

}  // namespace
}  // namespace tandem::server
