#include "server/app.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/http/raw_client.h"
#include "tests/support/temporary_dir.h"
#include "tests/support/tiny_model.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

// A whole server with a small random model, asked over sockets.
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
    return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + headers +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  RawClient::Reply Ask(const std::string& bytes) {
    RawClient client(app_->port());
    client.Send(bytes);
    return client.Read();
  }
  RawClient::Reply Get(const std::string& path, const std::string& headers = "") {
    return Ask("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
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
  // Spins until the engine holds nothing; the test's own timeout ends it otherwise.
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

  static std::unique_ptr<tests::TemporaryDir> directory_;
  std::unique_ptr<App> app_;
};

std::unique_ptr<tests::TemporaryDir> AppTest::directory_;

TEST_F(AppTest, OperationsAnswer) {
  StartApp();

  EXPECT_EQ(Get("/health").body, R"({"status":"ok"})");
  EXPECT_EQ(Get("/ready").body, R"({"status":"ready"})");
  const Json version = Json::parse(Get("/version").body);
  for (const char* field : {"version", "commit", "build", "features"}) {
    EXPECT_TRUE(version.contains(field));
  }
  const auto welcome = Get("/");
  EXPECT_NE(welcome.body.find("curl"), std::string::npos);
  EXPECT_EQ(welcome.headers.at("content-type"), "text/plain; charset=utf-8");
  const Json models = Json::parse(Get("/v1/models").body);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], 256);
  EXPECT_EQ(Json::parse(Get("/v1/models/tiny").body)["id"], "tiny");
  EXPECT_EQ(Get("/v1/models/no/such").status, 404);
}

TEST_F(AppTest, AStreamSpellsTheSameTextAsABody) {
  StartApp();
  for (const bool greedy : {true, false}) {
    Json request = Chat("a story about a dog");
    request["n"] = 2;
    request["logprobs"] = true;
    if (!greedy) {
      request["temperature"] = 1.2;
      request["seed"] = 42;
    }
    const Json body = PostJson("/v1/chat/completions", request);
    request["stream"] = true;
    request["stream_options"] = {{"include_usage", true}};

    const std::vector<Json> events = PostStream("/v1/chat/completions", request);

    std::string text[2];
    Json logprobs[2] = {Json::array(), Json::array()};
    std::string finish[2];
    for (const Json& event : events) {
      for (const Json& choice : event["choices"]) {
        const int index = choice["index"].get<int>();
        text[index] += choice["delta"].value("content", "");
        if (!choice["logprobs"].is_null()) {
          for (const Json& entry : choice["logprobs"]["content"]) logprobs[index].push_back(entry);
        }
        if (!choice["finish_reason"].is_null()) finish[index] = choice["finish_reason"];
      }
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(text[i], body["choices"][i]["message"]["content"]);
      EXPECT_EQ(logprobs[i], body["choices"][i]["logprobs"]["content"]);
      EXPECT_EQ(finish[i], body["choices"][i]["finish_reason"]);
    }
    EXPECT_EQ(events.back()["usage"]["completion_tokens"], body["usage"]["completion_tokens"]);
  }
}

TEST_F(AppTest, StopStringsEndTheTextBeforeThem) {
  StartApp();
  Json request = Chat("hello");
  const std::string whole =
      PostJson("/v1/chat/completions", request)["choices"][0]["message"]["content"];
  ASSERT_GT(whole.size(), 8u);
  // Cut at a character's beginning so that the stop string is text.
  size_t at = whole.size() / 2;
  while ((static_cast<unsigned char>(whole[at]) & 0xc0) == 0x80) ++at;
  size_t end = at + 2;
  while (end < whole.size() && (static_cast<unsigned char>(whole[end]) & 0xc0) == 0x80) ++end;
  const std::string stop = whole.substr(at, end - at);
  request["stop"] = stop;

  const Json choice = PostJson("/v1/chat/completions", request)["choices"][0];

  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], stop);
  EXPECT_EQ(choice["message"]["content"], whole.substr(0, whole.find(stop)));
}

TEST_F(AppTest, PromptsOfIdsAreScoredPositionByPosition) {
  StartApp();
  const Json request = {{"model", "tiny"}, {"prompt", {{5, 6, 7, 8}, {9, 10}}},
                        {"max_tokens", 0}, {"echo", true},
                        {"logprobs", 2},   {"return_tokens_as_token_ids", true}};

  const Json body = PostJson("/v1/completions", request);

  const Json& first = body["choices"][0]["logprobs"];
  EXPECT_EQ(first["tokens"], (Json{"token_id:5", "token_id:6", "token_id:7", "token_id:8"}));
  EXPECT_TRUE(first["token_logprobs"][0].is_null());
  EXPECT_LT(first["token_logprobs"][3].get<double>(), 0);
  EXPECT_GE(first["top_logprobs"][3].size(), 2u);
  EXPECT_EQ(body["choices"][1]["logprobs"]["tokens"].size(), 2u);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(body["usage"]["completion_tokens"], 0);
}

TEST_F(AppTest, AModelWithoutATokenizerTakesIdsAndSaysSo) {
  AppOptions options = Defaults();
  options.models = {{"", (directory_->path() / "ids").string()}};
  StartApp(std::move(options));

  const Json by_ids = PostJson("/v1/completions", {{"model", "ids"},
                                                   {"prompt", {5, 6}},
                                                   {"max_tokens", 4},
                                                   {"temperature", 0},
                                                   {"return_token_ids", true}});
  const Json by_text = PostJson("/v1/completions", {{"model", "ids"}, {"prompt", "hello"}}, 400);
  Json chat = Chat("hi");
  chat["model"] = "ids";
  const Json by_chat = PostJson("/v1/chat/completions", chat, 400);

  EXPECT_GE(by_ids["choices"][0]["token_ids"].size(), 1u);
  EXPECT_NE(by_text["error"]["message"].get<std::string>().find("token ids"), std::string::npos);
  EXPECT_NE(by_chat["error"]["message"].get<std::string>().find("tokenizer"), std::string::npos);
}

TEST_F(AppTest, RefusalsHaveTheirStatusParamAndCode) {
  StartApp();
  struct Case {
    const char* path;
    std::string body;
    int status;
    const char* param;  // empty: null
    const char* code;
  };
  const std::string long_prompt(3000, 'x');
  const Case cases[] = {
      {"/v1/chat/completions", "{", 400, "", "invalid_json"},
      {"/v1/chat/completions", "{}", 400, "model", "missing_required_parameter"},
      {"/v1/chat/completions", R"({"model": 5})", 400, "model", "invalid_type"},
      // An unknown model comes before bad messages.
      {"/v1/chat/completions", R"({"model": "no", "messages": 1})", 404, "model",
       "model_not_found"},
      {"/v1/chat/completions", R"({"model": "tiny", "messages": []})", 400, "messages",
       "invalid_value"},
      {"/v1/completions", R"({"model": "tiny", "prompt": [1, 100000]})", 400, "prompt[1]",
       "invalid_value"},
      {"/v1/completions", R"({"model": "tiny", "prompt": ")" + long_prompt + "\"}", 400, "prompt",
       "context_length_exceeded"},
      {"/v1/chat/completions",
       R"({"model": "tiny", "messages": [{"role": "user", "content": ")" + long_prompt + "\"}]}",
       400, "messages", "context_length_exceeded"},
      {"/detokenize", R"({"tokens": [-1]})", 400, "tokens[0]", "invalid_value"},
      {"/v1/nothing", "{}", 404, "", "unknown_url"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.body.substr(0, 80));
    const auto reply = Ask(Post(c.path, c.body));
    EXPECT_EQ(reply.status, c.status);
    const Json body = Json::parse(reply.body)["error"];
    EXPECT_EQ(body["param"], *c.param == '\0' ? Json() : Json(c.param));
    EXPECT_EQ(body["code"], c.code);
    EXPECT_EQ(body.size(), 4u);
  }
  const auto no_type = Ask("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(no_type.status, 415);
}

TEST_F(AppTest, ClientTextNeverBecomesAControlToken) {
  StartApp();

  const Json plain = PostJson("/tokenize", {{"prompt", "<end>"}, {"add_special_tokens", false}});
  const Json chat = PostJson("/tokenize", {{"messages", Chat("a<turn>b<end>")["messages"]}});

  for (const Json& id : plain["tokens"]) EXPECT_GT(id.get<int>(), 2);
  std::vector<int> special;
  for (const Json& id : chat["tokens"]) {
    if (id.get<int>() <= 2) special.push_back(id.get<int>());
  }
  EXPECT_EQ(special, (std::vector<int>{0, 2, 2}));  // <bos>, the template's two <turn>
}

TEST_F(AppTest, TextSurvivesTokenizeAndDetokenize) {
  StartApp();
  for (const std::string text : {"Once upon a time", "  é😀\n\t<end> x", ""}) {
    const Json tokens = PostJson("/tokenize", {{"prompt", text}})["tokens"];
    EXPECT_EQ(PostJson("/detokenize", {{"tokens", tokens}})["prompt"], text);
  }
  const Json chat = Chat("hello");
  EXPECT_EQ(PostJson("/tokenize", {{"messages", chat["messages"]}})["count"],
            PostJson("/v1/chat/completions", chat)["usage"]["prompt_tokens"]);
}

TEST_F(AppTest, KeysOpenWhatTheyShould) {
  AppOptions options = Defaults();
  options.api_keys = {"k1", "k2"};
  options.admin_key = "root";
  StartApp(std::move(options));

  const auto with = [](const std::string& value) { return "Authorization: " + value + "\r\n"; };
  EXPECT_EQ(Get("/health").status, 200);
  const auto missing = Get("/v1/models");
  EXPECT_EQ(missing.status, 401);
  EXPECT_EQ(missing.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(missing.headers.at("access-control-allow-origin"), "*");
  EXPECT_EQ(Json::parse(missing.body)["error"]["code"], "invalid_api_key");
  for (const char* bad : {"k1", "Basic k1", "Bearer", "Bearer k3", "Bearer k1 x", "Bearer  k1"}) {
    EXPECT_EQ(Get("/v1/models", with(bad)).status, 401) << bad;
  }
  for (const char* good : {"Bearer k1", "bearer k2", "BEARER root"}) {
    EXPECT_EQ(Get("/v1/models", with(good)).status, 200) << good;
  }
  EXPECT_EQ(Get("/v1/nothing").status, 404);  // routes come before keys
}

TEST_F(AppTest, AnOpenServerIsNotForOtherMachines) {
  AppOptions options = Defaults();
  options.http.host = "0.0.0.0";

  EXPECT_THROW(App{options}, Error);
  options.insecure = true;
  EXPECT_NO_THROW(App{options});
}

TEST_F(AppTest, AClientThatLeavesLeavesNothingBehind) {
  StartApp();
  Json request = Chat("hello");
  request["max_tokens"] = 200;
  request["ignore_eos"] = true;
  for (const bool stream : {false, true}) {
    request["stream"] = stream;
    const int64_t before = Stats().generation_tokens_total;
    {
      RawClient client(app_->port());
      client.Send(Post("/v1/chat/completions", request.dump()));
      if (stream) {
        EXPECT_TRUE(client.ReadUntil("data: "));
      } else {
        while (Stats().generation_tokens_total == before) std::this_thread::yield();
      }
    }
    WaitUntilIdle();
  }
}

TEST_F(AppTest, HalfOfManyStreamingClientsVanishAndTheOthersFinish) {
  AppOptions options = Defaults();
  options.engine.max_queue = 1000;
  StartApp(std::move(options));
  Json request = Chat("hello");
  request["stream"] = true;
  request["max_tokens"] = 20;
  request["ignore_eos"] = true;
  const std::string expected = [&] {
    std::string text;
    for (const Json& event : PostStream("/v1/chat/completions", request)) {
      text += event["choices"][0]["delta"].value("content", "");
    }
    return text;
  }();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<RawClient>(app_->port()));
    clients.back()->Send(Post("/v1/chat/completions", request.dump()));
  }

  for (size_t i = 0; i < clients.size(); i += 2) clients[i].reset();
  for (size_t i = 1; i < clients.size(); i += 2) {
    const auto reply = clients[i]->Read();
    std::string text;
    size_t at = 0;
    while (reply.body.compare(at, 12, "data: [DONE]") != 0 && at < reply.body.size()) {
      const size_t end = reply.body.find("\n\n", at);
      text += Json::parse(reply.body.substr(at + 6, end - at - 6))["choices"][0]["delta"].value(
          "content", "");
      at = end + 2;
    }
    EXPECT_EQ(text, expected);
  }
  clients.clear();

  WaitUntilIdle();
}

TEST_F(AppTest, ASlowReaderIsPausedAndLosesNothing) {
  AppOptions options = Defaults();
  options.http.max_output_bytes = 16 << 10;
  options.engine.max_seqs = 128;
  StartApp(std::move(options));
  Json request = Chat("hello");
  request["stream"] = true;
  request["n"] = 128;
  request["max_tokens"] = 200;
  request["ignore_eos"] = true;
  request["return_token_ids"] = true;
  RawClient slow(app_->port(), 4096);
  slow.Send(Post("/v1/chat/completions", request.dump()));
  ASSERT_TRUE(slow.ReadUntil("data: "));

  // A neighbour is answered meanwhile.
  PostJson("/v1/chat/completions", Chat("hi"));
  const auto reply = slow.Read();

  EXPECT_TRUE(reply.complete);
  size_t n_tokens = 0;
  size_t at = 0;
  while (reply.body.compare(at, 12, "data: [DONE]") != 0 && at < reply.body.size()) {
    const size_t end = reply.body.find("\n\n", at);
    const Json event = Json::parse(reply.body.substr(at + 6, end - at - 6));
    if (event["choices"][0].contains("token_ids")) {
      n_tokens += event["choices"][0]["token_ids"].size();
    }
    at = end + 2;
  }
  EXPECT_EQ(n_tokens, 128u * 200u);
  WaitUntilIdle();
}

TEST_F(AppTest, ARequestThatTakesTooLongIsEnded) {
  AppOptions options = Defaults();
  options.request_timeout = 1ms;
  StartApp(std::move(options));
  Json request = Chat("hello");
  request["n"] = 64;
  request["max_tokens"] = 240;
  request["ignore_eos"] = true;

  const auto reply = Ask(Post("/v1/chat/completions", request.dump()));

  EXPECT_EQ(reply.status, 503) << reply.body;
  EXPECT_TRUE(reply.headers.contains("retry-after"));
}

TEST_F(AppTest, AFullQueueAnswers503WithRetryAfter) {
  AppOptions options = Defaults();
  options.engine.max_seqs = 1;
  options.engine.max_queue = 1;
  StartApp(std::move(options));
  Json request = Chat("hello");
  request["stream"] = true;
  request["max_tokens"] = 230;
  request["ignore_eos"] = true;
  std::vector<std::unique_ptr<RawClient>> clients;
  std::optional<RawClient::Reply> refused;

  // One runs, one waits; some later one must be refused.
  for (int i = 0; i < 50 && !refused; ++i) {
    const auto reply = Ask(Post("/v1/chat/completions", [&] {
      Json quick = request;
      quick["stream"] = false;
      quick["max_tokens"] = 1;
      return quick.dump();
    }()));
    if (reply.status == 503) refused = reply;
    for (int k = 0; k < 2; ++k) {
      clients.push_back(std::make_unique<RawClient>(app_->port()));
      clients.back()->Send(Post("/v1/chat/completions", request.dump()));
    }
  }

  ASSERT_TRUE(refused);
  EXPECT_EQ(Json::parse(refused->body)["error"]["code"], "server_overloaded");
  EXPECT_EQ(refused->headers.at("retry-after"), "1");
}

TEST_F(AppTest, StoppingEndsStreamsWithAnErrorEvent) {
  AppOptions options = Defaults();
  options.drain_timeout = 0ms;
  StartApp(std::move(options));
  Json request = Chat("hello");
  request["stream"] = true;
  request["n"] = 16;
  request["max_tokens"] = 240;
  request["ignore_eos"] = true;
  RawClient client(app_->port());
  client.Send(Post("/v1/chat/completions", request.dump()));
  ASSERT_TRUE(client.ReadUntil("data: "));

  std::thread stopper([&] { app_->Stop(); });
  const auto reply = client.Read();
  client.Close();
  stopper.join();

  EXPECT_TRUE(reply.complete);
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(AppTest, UnknownFieldsAreNamedAndIgnored) {
  StartApp();
  Json request = Chat("hello");
  request["best_guess"] = 1;
  request["user"] = "u";

  const auto reply = Ask(Post("/v1/chat/completions", request.dump()));

  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("x-ignored-params"), "best_guess");
  EXPECT_TRUE(reply.headers.contains("openai-processing-ms"));
}

TEST_F(AppTest, BestOfAndSeveralPromptsAnswerInOrder) {
  StartApp();

  const Json body = PostJson("/v1/completions", {{"model", "tiny"},
                                                 {"prompt", {"Once", "Tom"}},
                                                 {"n", 2},
                                                 {"best_of", 3},
                                                 {"seed", 1},
                                                 {"max_tokens", 5},
                                                 {"ignore_eos", true}});

  ASSERT_EQ(body["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(body["choices"][i]["index"], i);
  EXPECT_EQ(body["usage"]["completion_tokens"], 2 * 3 * 5);
}

TEST_F(AppTest, NamesAndAliasesMeanTheModel) {
  AppOptions options = Defaults();
  options.served_model_names = {"first", "second"};
  options.models.push_back({"other", (directory_->path() / "ids").string()});
  StartApp(std::move(options));

  Json request = Chat("hello");
  request["model"] = "second";
  EXPECT_EQ(PostJson("/v1/chat/completions", request)["model"], "first");
  request["model"] = "tiny";
  PostJson("/v1/chat/completions", request, 404);
  EXPECT_EQ(Json::parse(Get("/v1/models").body)["data"].size(), 3u);
  PostJson("/tokenize", {{"prompt", "a"}}, 400);  // which of the two?
}

// Plays `tandem train --job DIR`: prints two lines, copies a model and says that it is done, or
// waits to be told to end.
class AppJobsTest : public AppTest {
 protected:
  static constexpr const char* kAdmin = "Authorization: Bearer root\r\n";

  AppOptions JobDefaults(const std::string& script) {
    const std::filesystem::path program = scratch_.path() / "train.sh";
    std::ofstream(program) << "#!/bin/sh\ndir=$3\n" << script;
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    std::filesystem::create_directories(scratch_.path() / "root");
    std::ofstream(scratch_.path() / "root" / "text.txt") << "Once upon a time\n";
    std::ofstream(scratch_.path() / "secret.txt") << "secret";
    std::filesystem::create_symlink(scratch_.path() / "secret.txt",
                                    scratch_.path() / "root" / "link.txt");
    AppOptions options = Defaults();
    options.admin_key = "root";
    options.data_dir = scratch_.path() / "data";
    options.model_root = scratch_.path() / "root";
    options.jobs.program = program;
    options.jobs.poll_interval = 5ms;
    return options;
  }
  static std::string Finishing() {
    return "echo line one\necho line two\ncp -r '" + (directory_->path() / "tiny").string() +
           "' \"$dir/hf\"\n"
           "printf '{\"status\":\"succeeded\",\"model_dir\":\"%s\",\"step\":3}' \"$dir/hf\" > "
           "\"$dir/r\"\nmv \"$dir/r\" \"$dir/result.json\"\n";
  }
  static Json Spec() {
    return {{"run_name", "bard"},
            {"train", {{"steps", 3}}},
            {"data", {{"train", "text.txt"}}},
            {"model", {{"tokenizer_path", "text.txt"}}}};
  }
  RawClient::Reply AskAdmin(const std::string& method, const std::string& path) {
    return Ask(method + " " + path + " HTTP/1.1\r\nHost: x\r\n" + kAdmin + "\r\n");
  }
  RawClient::Reply Create(const Json& body) {
    return Ask(Post("/admin/jobs", body.dump(), kAdmin));
  }
  // Follows the log to its end; returns the raw events.
  std::string Follow(const std::string& id) {
    return AskAdmin("GET", "/admin/jobs/" + id + "/log?follow=true").body;
  }

  tests::TemporaryDir scratch_;
};

TEST_F(AppJobsTest, AFinishedTrainingJobAnswersUnderItsRunName) {
  StartApp(JobDefaults(Finishing()));

  const auto created = Create({{"type", "train"}, {"spec", Spec()}});
  ASSERT_EQ(created.status, 202) << created.body;
  const std::string id = Json::parse(created.body)["id"];
  EXPECT_EQ(created.headers.at("location"), "/admin/jobs/" + id);
  const std::string events = Follow(id);

  EXPECT_NE(events.find("event: log\ndata: {\"offset\":0,\"line\":\"line one\"}"),
            std::string::npos)
      << events;
  EXPECT_TRUE(events.ends_with("event: end\ndata: {\"status\":\"succeeded\"}\n\n")) << events;
  const Json job = Json::parse(AskAdmin("GET", "/admin/jobs/" + id).body);
  EXPECT_EQ(job["status"], "succeeded") << job;
  EXPECT_EQ(job["result"]["model"], "bard");
  EXPECT_EQ(job["result"]["step"], 3);
  Json chat = Chat("hello");
  chat["model"] = "bard";
  EXPECT_EQ(PostJson("/v1/chat/completions", chat)["model"], "bard");
  chat["model"] = id;
  PostJson("/v1/chat/completions", chat);
  EXPECT_EQ(Json::parse(Get("/v1/models/bard").body)["owned_by"], "user");
  EXPECT_EQ(AskAdmin("GET", "/admin/jobs/" + id + "/log").body, "line one\nline two\n");
  const auto again = AskAdmin("POST", "/admin/jobs/" + id + "/cancel");
  EXPECT_EQ(again.status, 400);
  EXPECT_EQ(Json::parse(again.body)["error"]["code"], "job_not_active");
}

TEST_F(AppJobsTest, JobsAndTheirModelsSurviveARestart) {
  const AppOptions options = JobDefaults(Finishing());
  StartApp(options);
  const std::string id = Json::parse(Create({{"type", "train"}, {"spec", Spec()}}).body)["id"];
  Follow(id);

  app_.reset();
  StartApp(options);

  EXPECT_EQ(Json::parse(AskAdmin("GET", "/admin/jobs/" + id).body)["status"], "succeeded");
  Json chat = Chat("hello");
  chat["model"] = "bard";
  PostJson("/v1/chat/completions", chat);
}

TEST_F(AppJobsTest, ADeletedModelLetsItsRequestsEndAndDoesNotComeBack) {
  const AppOptions options = JobDefaults(Finishing());
  StartApp(options);
  for (int i = 0; i < 2; ++i) {  // two jobs made a model of this name
    Follow(Json::parse(Create({{"type", "train"}, {"spec", Spec()}}).body)["id"]);
  }
  Json chat = Chat("hello");
  chat["model"] = "bard";
  chat["stream"] = true;
  chat["n"] = 16;
  chat["max_tokens"] = 200;
  chat["ignore_eos"] = true;
  RawClient running(app_->port());
  running.Send(Post("/v1/chat/completions", chat.dump()));
  ASSERT_TRUE(running.ReadUntil("data: "));

  const auto ask = [](const char* id) {
    return "DELETE /v1/models/" + std::string(id) + " HTTP/1.1\r\nHost: x\r\n\r\n";
  };
  const auto base = Ask(ask("tiny"));
  EXPECT_EQ(base.status, 403);
  EXPECT_EQ(Json::parse(base.body)["error"]["code"], "model_protected");
  EXPECT_EQ(Ask(ask("nobody")).status, 404);
  const auto deleted = Ask(ask("bard"));
  EXPECT_EQ(deleted.status, 200);
  EXPECT_EQ(Json::parse(deleted.body),
            (Json{{"id", "bard"}, {"object", "model"}, {"deleted", true}}));
  const auto stream = running.Read();
  EXPECT_TRUE(stream.complete);
  EXPECT_EQ(stream.body.find("\"error\""), std::string::npos);
  EXPECT_NE(stream.body.find("data: [DONE]"), std::string::npos);
  EXPECT_EQ(Ask(ask("bard")).status, 404);

  app_.reset();
  StartApp(options);

  EXPECT_EQ(Get("/v1/models/bard").status, 404);
  // A new job may use the name again.
  Follow(Json::parse(Create({{"type", "train"}, {"spec", Spec()}}).body)["id"]);
  EXPECT_EQ(Get("/v1/models/bard").status, 200);
}

TEST_F(AppJobsTest, ATunedModelNamesTheModelItBeganWith) {
  const AppOptions options = JobDefaults(Finishing());
  std::filesystem::copy(directory_->path() / "tiny", scratch_.path() / "root" / "small",
                        std::filesystem::copy_options::recursive);
  StartApp(options);
  Json spec = Spec();
  spec["model"] = {{"load_parameters_path", "small"}};

  const auto created = Create({{"type", "train"}, {"spec", spec}});
  ASSERT_EQ(created.status, 202) << created.body;
  Follow(Json::parse(created.body)["id"]);

  const Json model = Json::parse(Get("/v1/models/bard").body);
  EXPECT_EQ(model["parent"], "small");
  EXPECT_EQ(model["root"], "small");
  EXPECT_EQ(model["owned_by"], "user");
}

TEST_F(AppJobsTest, ARunningJobCanBeCancelled) {
  StartApp(JobDefaults("echo begun\nexec sleep 1000\n"));
  const std::string id = Json::parse(Create({{"type", "train"}, {"spec", Spec()}}).body)["id"];
  RawClient follower(app_->port());
  follower.Send("GET /admin/jobs/" + id + "/log?follow=true HTTP/1.1\r\nHost: x\r\n" + kAdmin +
                "\r\n");
  ASSERT_TRUE(follower.ReadUntil("begun"));

  EXPECT_EQ(AskAdmin("POST", "/admin/jobs/" + id + "/cancel").status, 200);

  EXPECT_TRUE(follower.ReadUntil("event: end\ndata: {\"status\":\"cancelled\"}"));
  const Json list = Json::parse(AskAdmin("GET", "/admin/jobs?status=cancelled").body);
  EXPECT_EQ(list["data"][0]["id"], id);
  EXPECT_EQ(list["has_more"], false);
}

TEST_F(AppJobsTest, AServerThatStopsEndsItsFollowers) {
  StartApp(JobDefaults("echo begun\nexec sleep 1000\n"));
  const std::string id = Json::parse(Create({{"type", "train"}, {"spec", Spec()}}).body)["id"];
  RawClient follower(app_->port());
  follower.Send("GET /admin/jobs/" + id + "/log?follow=true HTTP/1.1\r\nHost: x\r\n" + kAdmin +
                "\r\n");
  ASSERT_TRUE(follower.ReadUntil("begun"));

  std::thread stopper([&] { app_->Stop(); });
  EXPECT_TRUE(follower.ReadUntil("event: end"));
  follower.Close();
  stopper.join();
}

TEST_F(AppJobsTest, BadJobsAreRefusedBeforeTheyExist) {
  StartApp(JobDefaults("exit 0\n"));
  const auto with = [](const char* pointer, const Json& value) {
    Json spec = Spec();
    spec[Json::json_pointer(pointer)] = value;
    return Json{{"type", "train"}, {"spec", spec}};
  };
  struct Case {
    Json body;
    int status;
    const char* code;
  };
  const Case cases[] = {
      {{{"spec", Spec()}}, 400, "missing_required_parameter"},
      {{{"type", "dance"}, {"spec", Spec()}}, 400, "invalid_value"},
      {{{"type", "train"}}, 400, "missing_required_parameter"},
      {{{"type", "train"}, {"spec", "x"}}, 400, "invalid_type"},
      {{{"type", "train"}, {"spec", Spec()}, {"colour", 1}}, 400, "invalid_value"},
      {with("/train/stepz", 3), 400, "invalid_value"},
      {with("/data/train", "/etc/passwd"), 400, "invalid_path"},
      {with("/data/train", "../secret.txt"), 400, "invalid_path"},
      {with("/data/train", "link.txt"), 400, "invalid_path"},
      {with("/data/train", "nowhere.txt"), 404, "path_not_found"},
      {with("/data/train", "${HOME}/x"), 400, "invalid_value"},
      {with("/run_name", "a/b"), 400, "invalid_value"},
      {with("/run_name", "tiny"), 409, "already_exists"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.body.dump());
    const auto reply = Create(c.body);
    EXPECT_EQ(reply.status, c.status) << reply.body;
    EXPECT_EQ(Json::parse(reply.body)["error"]["code"], c.code) << reply.body;
  }
  EXPECT_EQ(Json::parse(AskAdmin("GET", "/admin/jobs").body)["data"].size(), 0u);
  EXPECT_EQ(AskAdmin("GET", "/admin/jobs?status=odd").status, 400);
  EXPECT_EQ(AskAdmin("GET", "/admin/jobs?limit=0").status, 400);
  EXPECT_EQ(AskAdmin("GET", "/admin/jobs/job-none").status, 404);
  EXPECT_EQ(AskAdmin("GET", "/admin/jobs/job-none/log").status, 404);
  EXPECT_EQ(AskAdmin("POST", "/admin/jobs/job-none/cancel").status, 404);
}

TEST_F(AppJobsTest, AdminRoutesNeedTheAdminKey) {
  AppOptions options = JobDefaults("exit 0\n");
  options.api_keys = {"k1"};
  StartApp(options);

  EXPECT_EQ(Get("/admin/jobs").status, 401);
  EXPECT_EQ(Get("/admin/jobs", "Authorization: Bearer k1\r\n").status, 403);
  EXPECT_EQ(Get("/admin/jobs", kAdmin).status, 200);
  const Json models = Json::parse(Get("/admin/models", kAdmin).body);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["running"], 0);
  EXPECT_EQ(models["data"][0]["kv_blocks_used"], 0);
}

TEST_F(AppTest, WithoutAnAdminKeyAdminRoutesAreOff) {
  StartApp();

  const auto reply = Get("/admin/jobs", "Authorization: Bearer x\r\n");

  EXPECT_EQ(reply.status, 403);
  EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "admin_disabled");
}

}  // namespace
}  // namespace tandem::server
