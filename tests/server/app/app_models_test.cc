#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/formats/model_dir.h"
#include "engine/io/mapping_faults.h"
#include "engine/model/adapter.h"
#include "engine/model/model.h"
#include "tests/server/app/app_fixture.h"
#include "tests/support/paths.h"

namespace tandem::server {
namespace {

// Models are loaded and unloaded while the server runs. tests/e2e/models_test.py covers real times
// and sizes.
class AppModelsTest : public AppTest {
 protected:
  static constexpr const char* kAdmin = "Authorization: Bearer root\r\n";

  AppOptions WithAdmin() {
    AppOptions options = Defaults();
    options.engine.kv_cache_bytes = 1 << 20;
    options.engine.memory_bytes = 256 << 20;
    options.admin_key = "root";
    options.data_dir = scratch_.path() / "data";
    options.model_root = directory_->path();
    return options;
  }
  RawClient::Reply Admin(const std::string& path, const Json& body) {
    return Ask(Post(path, body.dump(), kAdmin));
  }
  Json Load(const std::string& id, Json more = Json::object()) {
    Json body = {{"path", "tiny"}, {"id", id}, {"wait", true}};
    body.update(more);
    const auto reply = Admin("/admin/models/load", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }
  Json Unload(const std::string& id, bool force = false) {
    const auto reply =
        Admin("/admin/models/unload", {{"id", id}, {"wait", true}, {"force", force}});
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }
  Json AdminModels() {
    return Json::parse(
        Ask(std::string("GET /admin/models HTTP/1.1\r\nHost: localhost\r\n") + kAdmin + "\r\n")
            .body);
  }
  static void ExpectStartIsRefused(const AppOptions& options,
                                   const std::vector<std::string>& words) {
    App app(options);
    try {
      app.Start();
      FAIL() << "started";
    } catch (const Error& error) {
      const std::string message = error.what();
      for (const std::string& each : words) {
        EXPECT_NE(message.find(each), std::string::npos) << message;
      }
    }
  }
  static Json ChatWith(const std::string& model) {
    Json chat = Chat("hello");
    chat["model"] = model;
    return chat;
  }

  tests::TemporaryDir scratch_;
};

TEST_F(AppModelsTest, ALoadedModelAnswersUntilItIsUnloaded) {
  StartApp(WithAdmin());

  EXPECT_EQ(Load("second")["status"], "succeeded");
  EXPECT_EQ(PostJson("/v1/chat/completions", ChatWith("second"))["model"], "second");
  const Json models = AdminModels();
  ASSERT_EQ(models["data"].size(), 2u);
  int64_t used = 0;
  for (const Json& model : models["data"]) used += model["memory_bytes"].get<int64_t>();
  EXPECT_EQ(models["memory"]["used_bytes"], used);
  EXPECT_EQ(Unload("second")["status"], "succeeded");

  EXPECT_EQ(PostJson("/v1/chat/completions", ChatWith("second"), 404)["error"]["code"],
            "model_not_found");
  EXPECT_EQ(AdminModels()["memory"]["used_bytes"], AdminModels()["data"][0]["memory_bytes"]);
}

TEST_F(AppModelsTest, AnUnloadWaitsForWhatRunsAndForceDoesNot) {
  StartApp(WithAdmin());
  for (const bool force : {false, true}) {
    Load("second");
    Json chat = ChatWith("second");
    chat["stream"] = true;
    chat["n"] = 16;
    chat["max_tokens"] = 200;
    chat["ignore_eos"] = true;
    RawClient running(app_->port());
    running.Send(Post("/v1/chat/completions", chat.dump()));
    ASSERT_TRUE(running.ReadUntil("data: "));

    EXPECT_EQ(Unload("second", force)["status"], "succeeded");

    const auto stream = running.Read();
    EXPECT_TRUE(stream.complete);
    EXPECT_TRUE(stream.body.ends_with("data: [DONE]\n\n"));
    if (!force) {
      EXPECT_EQ(stream.body.find("\"error\""), std::string::npos);
    }
  }
}

TEST_F(AppModelsTest, ForceEndsEveryRequestWithOneError) {
  StartApp(WithAdmin());
  Load("second");
  Json chat = ChatWith("second");
  chat["stream"] = true;
  chat["n"] = 16;
  chat["max_tokens"] = 200;
  chat["ignore_eos"] = true;
  // Far more requests than can finish before the unload: the waiting ones have produced nothing.
  constexpr int kRequests = 32;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < kRequests; ++i) {
    clients.push_back(std::make_unique<RawClient>(app_->port()));
    clients.back()->Send(Post("/v1/chat/completions", chat.dump()));
  }
  const std::shared_ptr<engine::Engine> engine = app_->models().Look("second")->engine;
  const auto in_engine = [&] {
    const engine::EngineStats stats = engine->stats();
    return stats.requests_running + stats.requests_waiting > 0 && stats.requests_queued > 4;
  };
  const auto give_up = std::chrono::steady_clock::now() + 60s;
  while (!in_engine() && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();

  EXPECT_EQ(Unload("second", true)["status"], "succeeded");

  int n_errors = 0;
  for (auto& client : clients) {
    const auto stream = client->Read();
    EXPECT_TRUE(stream.complete);
    const bool is_stream = stream.status == 200;
    if (is_stream) {
      EXPECT_TRUE(stream.body.ends_with("data: [DONE]\n\n"));
    }
    const size_t at = stream.body.find("\"error\"");
    if (at == std::string::npos) continue;
    ++n_errors;
    EXPECT_EQ(stream.body.find("\"error\"", at + 1), std::string::npos) << stream.body;
    if (is_stream) {
      EXPECT_NE(stream.body.find("shutting_down"), std::string::npos) << stream.body;
    }
  }
  EXPECT_GT(n_errors, 0);
}

TEST_F(AppModelsTest, AModelThatNobodyScrapedIsCountedAllTheSame) {
  StartApp(WithAdmin());
  Load("short");
  Json chat = ChatWith("short");
  chat["ignore_eos"] = true;
  PostJson("/v1/chat/completions", chat);
  Unload("short");

  const std::string text = Get("/metrics").body;

  EXPECT_NE(text.find("tandem:generation_tokens_total{model_name=\"short\"} 24"), std::string::npos)
      << text;
  EXPECT_EQ(text.find("num_requests_running{model_name=\"short\"}"), std::string::npos);
}

TEST_F(AppModelsTest, NamesAreCheckedBeforeAnythingIsOpened) {
  const std::string tiny = (directory_->path() / "tiny").string();
  struct Case {
    std::vector<ModelArgument> models;
    std::vector<std::string> served_names;
    std::vector<AdapterSource> adapters;
    std::string name;
  };
  const std::vector<Case> cases = {
      {{{"a", tiny}, {"a", "/nowhere"}}, {}, {}, "'a'"},
      {{{"a", tiny}, {"b", "/nowhere"}}, {"x", "b"}, {}, "'b'"},
      {{{"a", "/nowhere"}}, {}, {{"a", "/nowhere"}}, "'a'"},
      {{{"a", "/nowhere"}}, {}, {{"l", "/nowhere"}, {"l", "/nowhere"}}, "'l'"},
  };
  for (const Case& c : cases) {
    AppOptions options = WithAdmin();
    options.models = c.models;
    options.served_model_names = c.served_names;
    options.adapters = c.adapters;
    App app(options);
    try {
      app.Start();
      ADD_FAILURE() << "started with " << c.name << " twice";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kAlreadyExists) << error.what();
      EXPECT_NE(std::string(error.what()).find(c.name + " names two models"), std::string::npos)
          << error.what();
    }
  }
  // A model may list one name twice.
  AppOptions options = WithAdmin();
  options.served_model_names = {"x", "y", "x"};
  StartApp(options);
  EXPECT_EQ(app_->models().List().size(), 2u);
}

TEST_F(AppModelsTest, MetricsNameNoAdapterToAReaderWithoutAKey) {
  const std::filesystem::path base = tests::SourceDir() / "tests/golden/gemma2-tiny";
  AppOptions options = WithAdmin();
  options.api_keys = {"k"};
  options.models = {{"base", base.string()}};
  options.adapters = {{"secret-tune", (base / "lora").string()}};
  StartApp(options);
  const auto metrics = [&](const std::string& header) {
    return Ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + header + "\r\n");
  };

  const auto open = metrics("");
  EXPECT_EQ(open.status, 200);
  EXPECT_EQ(open.body.find("secret-tune"), std::string::npos) << open.body;
  EXPECT_NE(open.body.find("model_name=\"base\""), std::string::npos);
  EXPECT_NE(open.body.find("model_name=\"other\""), std::string::npos);
  EXPECT_EQ(metrics("Authorization: Bearer wrong\r\n").body.find("secret-tune"), std::string::npos);
  EXPECT_NE(metrics("Authorization: Bearer k\r\n").body.find("secret-tune"), std::string::npos);
}

TEST_F(AppModelsTest, AdaptersTakeFromTheBudget) {
  const std::filesystem::path base = tests::SourceDir() / "tests/golden/gemma2-tiny";
  AppOptions options = WithAdmin();
  options.models = {{"base", base.string()}};
  options.adapters = {{"tuned", (base / "lora").string()}};
  const engine::ModelDir files = engine::ModelDir::Open(base);
  const int64_t base_bytes = engine::PlanMemory(files, options.engine).least.total();
  const int64_t adapter_bytes =
      engine::PlanAdapterMemory(base / "lora", files, options.engine).total();
  ASSERT_GT(adapter_bytes, 0);
  options.engine.memory_bytes = base_bytes + adapter_bytes - 1;
  ExpectStartIsRefused(options, {"model 'tuned' needs", "raise --memory"});
  ++options.engine.memory_bytes;
  StartApp(options);

  const Json models = AdminModels();

  EXPECT_EQ(app_->models().Look("tuned")->memory.claim().total(), adapter_bytes)
      << "the plan says what it takes";
  EXPECT_EQ(app_->models().Look("tuned")->adapter->bytes(), adapter_bytes);
  ASSERT_EQ(models["data"].size(), 1u);
  EXPECT_EQ(models["data"][0]["adapters"], Json::array({"tuned"}));
  EXPECT_EQ(models["data"][0]["memory_bytes"], models["memory"]["used_bytes"]);
}

TEST_F(AppModelsTest, AnEmbeddedNameOpensNoDirectoryOutsideTheModelRoot) {
  StartApp(WithAdmin());
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_directories(scratch_.path() / "elsewhere" / "tandem-stories");
  std::filesystem::current_path(scratch_.path() / "elsewhere");

  const Json job = Load("stories", {{"path", "tandem-stories"}, {"max_model_len", 64}});

  std::filesystem::current_path(before);
  EXPECT_EQ(job["status"], "succeeded") << job;
}

TEST_F(AppModelsTest, ALoadThatDoesNotFitIsRefusedBeforeItBegins) {
  AppOptions options = WithAdmin();
  options.engine.memory_bytes = 48 << 20;
  options.engine.kv_cache_bytes = 16 << 20;
  StartApp(options);

  std::string message;
  for (int i = 0; i < 4 && message.empty(); ++i) {
    const auto reply = Admin("/admin/models/load",
                             {{"path", "tiny"}, {"id", "m" + std::to_string(i)}, {"wait", true}});
    if (reply.status == 200) continue;
    EXPECT_EQ(reply.status, 503);
    EXPECT_TRUE(reply.headers.contains("retry-after"));
    EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "out_of_memory");
    message = Json::parse(reply.body)["error"]["message"];
  }

  EXPECT_NE(message.find("of the memory budget of 48.0 MiB are free: 'tiny' holds"),
            std::string::npos)
      << message;
  PostJson("/v1/chat/completions", Chat("hello"));
}

TEST_F(AppModelsTest, ModelsThatDoNotFitTogetherDoNotStart) {
  AppOptions options = WithAdmin();
  options.engine.memory_bytes = 48 << 20;
  options.engine.kv_cache_bytes = 32 << 20;
  options.models = {{"a", (directory_->path() / "tiny").string()},
                    {"b", (directory_->path() / "tiny").string()}};
  ExpectStartIsRefused(options, {"model 'b' needs", "raise --memory"});
}

TEST_F(AppModelsTest, WithoutAnAdminKeyNothingIsLoaded) {
  AppOptions options = WithAdmin();
  options.admin_key.reset();
  StartApp(options);

  for (const char* path : {"/admin/models/load", "/admin/models/unload"}) {
    const auto reply = Admin(path, {{"path", "tiny"}, {"id", "tiny"}});
    EXPECT_EQ(reply.status, 403);
    EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "admin_disabled");
  }
}

TEST_F(AppModelsTest, StartIsInterruptedWhileModelsLoad) {
  AppOptions options = WithAdmin();
  options.is_interrupted = [] { return true; };
  App app(options);

  try {
    app.Start();
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
}

TEST_F(AppModelsTest, MetricsSayWhetherPrefixesAreCached) {
  for (const bool cached : {true, false}) {
    AppOptions options = WithAdmin();
    options.engine.prefix_cache = cached;
    StartApp(options);
    const std::string says =
        std::string("enable_prefix_caching=\"") + (cached ? "True" : "False") + "\"";
    EXPECT_NE(Get("/metrics").body.find(says), std::string::npos) << says;
    app_.reset();
  }
}

TEST_F(AppModelsTest, AModelWhoseWeightsAreLostAnswers503AndGoesWhileOthersServe) {
  engine::SurviveMappingFaults();
  AppOptions options = WithAdmin();
  options.engine.cache_dir = directory_->path() / "lost-cache";
  StartApp(options);
  // Another dtype than the first model's, hence another packed file.
  const Json load = {{"path", "tiny"}, {"id", "m"}, {"dtype", "bf16"}, {"wait", true}};
  ASSERT_EQ(Admin("/admin/models/load", load).status, 200);
  ASSERT_EQ(Ask(Post("/v1/chat/completions", ChatWith("m").dump())).status, 200);
  std::filesystem::resize_file(app_->models().Find("m")->loaded().model->packed_path(), 4096);

  const auto reply = Ask(Post("/v1/chat/completions", ChatWith("m").dump()));
  EXPECT_EQ(reply.status, 503) << reply.body;
  EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "model_damaged");
  for (int status = 503; status != 404;) {
    status = Ask(Post("/v1/chat/completions", ChatWith("m").dump())).status;
    ASSERT_TRUE(status == 503 || status == 404) << status;
  }
  EXPECT_EQ(Ask(Post("/v1/chat/completions", Chat("hi").dump())).status, 200);
  ASSERT_EQ(Admin("/admin/models/load", load).status, 200);
  EXPECT_EQ(Ask(Post("/v1/chat/completions", ChatWith("m").dump())).status, 200);
}

TEST_F(AppModelsTest, WithoutADataDirectoryADamagedModelGoesToo) {
  engine::SurviveMappingFaults();
  AppOptions options = Defaults();
  options.engine.cache_dir = directory_->path() / "lost-cache-2";
  options.engine.dtype = engine::DType::kBF16;
  StartApp(options);
  ASSERT_EQ(Get("/ready").status, 200);
  std::filesystem::resize_file(app_->models().Find("tiny")->loaded().model->packed_path(), 4096);

  EXPECT_EQ(Ask(Post("/v1/chat/completions", Chat("hi").dump())).status, 503);
  const auto damaged = Get("/ready");
  EXPECT_EQ(damaged.status, 503) << damaged.body;
  while (!app_->models().empty()) std::this_thread::yield();  // within the test's timeout
  EXPECT_EQ(Get("/ready").body, R"({"status":"no_model"})");
  EXPECT_EQ(Ask(Post("/v1/chat/completions", Chat("hi").dump())).status, 404);
}

// Mainly for the thread sanitizer.
TEST_F(AppModelsTest, LoadsUnloadsAndRequestsInAnyOrder) {
  StartApp(WithAdmin());
  std::atomic<bool> stop{false};
  std::atomic<int> n_answers{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        const int status = Ask(Post("/v1/chat/completions", ChatWith("m").dump())).status;
        EXPECT_TRUE(status == 200 || status == 404 || status == 503) << status;
        EXPECT_EQ(Ask(Post("/v1/chat/completions", Chat("hi").dump())).status, 200);
        AdminModels();
        Get("/metrics");
        ++n_answers;
      }
    });
  }
  std::vector<std::thread> managers;
  for (int t = 0; t < 2; ++t) {
    managers.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        const bool loads = (i + t) % 2 == 0;
        const auto reply =
            loads ? Admin("/admin/models/load", {{"path", "tiny"}, {"id", "m"}, {"wait", true}})
                  : Admin("/admin/models/unload",
                          {{"id", "m"}, {"wait", true}, {"force", i % 4 == 1}});
        EXPECT_TRUE(reply.status == 200 || reply.status == 409 || (!loads && reply.status == 404))
            << reply.body;
      }
    });
  }
  for (std::thread& manager : managers) manager.join();
  stop = true;
  for (std::thread& thread : threads) thread.join();

  EXPECT_GT(n_answers, 0);
  if (app_->models().Contains("m")) Unload("m");
  EXPECT_EQ(AdminModels()["data"].size(), 1u);
  app_->Stop();
}

}  // namespace
}  // namespace tandem::server
