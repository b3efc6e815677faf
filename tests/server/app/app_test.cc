#include "server/app/app.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/app/app_fixture.h"

namespace tandem::server {
namespace {

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
  // Cut at the beginning of a character, so that the stop string is valid text.
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
      // An unknown model is reported before bad messages.
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
  const auto no_type =
      Ask("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}");
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
  EXPECT_EQ(special, (std::vector<int>{0, 2, 2}));  // <bos>, and two <turn> of the template
}

TEST_F(AppTest, AThoughtThatTheTemplateDropsIsNamedAsIgnored) {
  StartApp();
  Json chat = Chat("hi");
  chat["messages"] = {{{"role", "user"}, {"content", "a"}},
                      {{"role", "assistant"}, {"content", "b"}, {"reasoning", "c"}},
                      {{"role", "user"}, {"content", "d"}}};

  const auto reply = Ask(Post("/v1/chat/completions", chat.dump()));

  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("x-ignored-params"), "messages.1.reasoning_content");
}

TEST_F(AppTest, APlainPromptSpellsControlTokensOnlyOnRequest) {
  StartApp();
  const auto tokens = [this](bool parse_special) {
    return PostJson("/tokenize", {{"prompt", "<turn>"},
                                  {"add_special_tokens", false},
                                  {"parse_special", parse_special}})["tokens"];
  };
  const auto prompt_tokens = [this](bool parse_special) {
    return PostJson("/v1/completions", {{"model", "tiny"},
                                        {"prompt", "<turn>"},
                                        {"max_tokens", 1},
                                        {"parse_special", parse_special}})["usage"]["prompt_tokens"]
        .get<size_t>();
  };

  EXPECT_EQ(tokens(true), Json::array({2}));
  EXPECT_GT(tokens(false).size(), 1U);
  EXPECT_EQ(prompt_tokens(false) - prompt_tokens(true), tokens(false).size() - 1);
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

// The tiny model's text is noise. A bias restricts it to the marks (tokens 3 and 4) and one word.
TEST_F(AppTest, ThoughtsAreAnsweredApartWhereTheMarksAreControlTokens) {
  const tests::TemporaryDir directory;
  std::filesystem::create_directory(directory.path() / "tiny");
  tests::TinyModelOptions model;
  model.special_tokens = {"<bos>", "<end>", "<turn>", "<think>", "</think>"};
  model.chat_template =
      "{{ bos_token }}{{ messages[0]['content'] }}{% if enable_thinking %}<think>{% endif %}";
  tests::WriteTinyModel(directory.path() / "tiny", model);
  AppOptions options = Defaults();
  options.models = {{"", (directory.path() / "tiny").string()}};
  StartApp(std::move(options));
  const Json tokens = PostJson("/tokenize", {{"prompt", "a"}, {"add_special_tokens", false}});
  ASSERT_EQ(tokens["count"], 1);
  const int word = tokens["tokens"][0].get<int>();

  for (const bool opens : {true, false}) {
    Json request = Chat("hello");
    request["temperature"] = 1;
    request["max_tokens"] = 12;
    request["return_token_ids"] = true;
    request["chat_template_kwargs"] = {{"enable_thinking", opens}};
    request["logit_bias"] = {{"3", opens ? 0 : 100}, {"4", 100}, {std::to_string(word), 100}};
    int n_seen = 0;
    for (int seed = 0; seed < 200 && n_seen < 3; ++seed) {
      request["seed"] = seed;
      request["stream"] = false;
      const Json body = PostJson("/v1/chat/completions", request);
      const Json& message = body["choices"][0]["message"];
      std::string spelled;
      for (const Json& id : body["choices"][0]["token_ids"]) {
        spelled += id == 3 ? "<think>" : id == 4 ? "</think>" : "a";
      }
      // Checks only texts that begin with a thought which ends before the text does.
      if (!opens && !spelled.starts_with("<think>")) continue;
      if (!opens) spelled.erase(0, 7);
      const size_t close = spelled.find("</think>");
      if (close == std::string::npos || close == 0 || close + 8 == spelled.size()) continue;
      ++n_seen;
      SCOPED_TRACE(spelled);

      EXPECT_EQ(message["reasoning_content"], spelled.substr(0, close));
      EXPECT_EQ(message["content"], spelled.substr(close + 8));
      EXPECT_EQ(body["usage"]["completion_tokens"], 12);

      request["stream"] = true;
      std::string reasoning;
      std::string content;
      for (const Json& event : PostStream("/v1/chat/completions", request)) {
        const Json& delta = event["choices"][0]["delta"];
        reasoning += delta.value("reasoning_content", "");
        content += delta.value("content", "");
      }
      EXPECT_EQ(reasoning, message["reasoning_content"]);
      EXPECT_EQ(content, message["content"]);
    }
    EXPECT_EQ(n_seen, 3);
  }
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
  EXPECT_EQ(Get("/v1/nothing").status, 404);  // routing comes before the key check
}

TEST_F(AppTest, AKeySeesNothingOfWhatAnotherOneSentInCachedTokens) {
  for (const bool shared : {false, true}) {
    SCOPED_TRACE(shared);
    AppOptions options = Defaults();
    options.api_keys = {"k1", "k2"};
    options.admin_key = "root";
    options.share_prefix_cache = shared;
    StartApp(std::move(options));
    const auto cached_of = [&](const std::string& key) {
      const std::string body =
          Chat(
              "A secret of several blocks of tokens, that nobody else could guess by chance, and "
              "that one key alone has sent to this server.")
              .dump();
      const auto reply =
          Ask(Post("/v1/chat/completions", body, "Authorization: Bearer " + key + "\r\n"));
      EXPECT_EQ(reply.status, 200) << reply.body;
      return Json::parse(reply.body)["usage"]["prompt_tokens_details"]["cached_tokens"]
          .get<int64_t>();
    };
    EXPECT_EQ(cached_of("k1"), 0);
    EXPECT_EQ(cached_of("k2") > 0, shared);
    EXPECT_EQ(cached_of("root") > 0, shared);
    EXPECT_GT(cached_of("k1"), 0);
    app_.reset();
  }
}

TEST_F(AppTest, AnOpenServerIsNotForOtherMachines) {
  AppOptions options = Defaults();
  options.http.host = "0.0.0.0";

  EXPECT_THROW(App{options}, Error);
  options.insecure = true;
  EXPECT_NO_THROW(App{options});
}

TEST_F(AppTest, WhatCannotWorkIsRefusedBeforeTheServerStarts) {
  const auto fault = [](const AppOptions& options) -> std::string {
    try {
      App app(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  AppOptions options = Defaults();
  options.http.host = "300.1.1.1";
  EXPECT_NE(fault(options).find("must be an IP address"), std::string::npos) << fault(options);
  options = Defaults();
  options.http.body_memory_bytes = options.http.max_body_bytes - 1;
  EXPECT_NE(fault(options).find("--body-memory"), std::string::npos) << fault(options);
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

  // Another client is served meanwhile.
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

  // One runs and one waits, so a later one must be refused.
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
  const int64_t retry_s = std::stoll(refused->headers.at("retry-after"));
  EXPECT_TRUE(retry_s >= 1 && retry_s <= 60) << retry_s;
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
  PostJson("/tokenize", {{"prompt", "a"}}, 400);  // either model could be meant
}

}  // namespace
}  // namespace tandem::server
