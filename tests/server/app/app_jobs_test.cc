#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/server/app/app_fixture.h"

namespace tandem::server {
namespace {

// Plays `tandem train --job DIR`: prints two lines, copies a model and reports success, or waits
// for a signal to stop.
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
    return Ask(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + kAdmin + "\r\n");
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

TEST_F(AppJobsTest, AFinishedAdapterJobNamesNoModel) {
  StartApp(
      JobDefaults("printf '{\"status\":\"succeeded\",\"model_dir\":\"\",\"step\":3,"
                  "\"adapter_dir\":\"%s/adapter\"}' \"$dir\" > \"$dir/r\"\n"
                  "mv \"$dir/r\" \"$dir/result.json\"\n"));

  const std::string id = Json::parse(Create({{"type", "train"}, {"spec", Spec()}}).body)["id"];
  Follow(id);

  const Json job = Json::parse(AskAdmin("GET", "/admin/jobs/" + id).body);
  EXPECT_EQ(job["status"], "succeeded") << job;
  EXPECT_FALSE(job["result"].contains("model")) << job;
  EXPECT_FALSE(job["result"].contains("path")) << job;
  EXPECT_TRUE(job["result"]["adapter_dir"].get<std::string>().ends_with("/adapter")) << job;
  EXPECT_EQ(job["result"]["step"], 3);
  EXPECT_EQ(Get("/v1/models/bard").status, 404);
}

// A merged adapter is a model, and is served as one.
TEST_F(AppJobsTest, AMergedAdapterJobNamesItsModel) {
  std::string script = Finishing();
  const std::string status = "\"status\":\"succeeded\"";
  const size_t at = script.find(status);
  ASSERT_NE(at, std::string::npos) << script;
  script.insert(at, "\"adapter_dir\":\"adapter\",");
  StartApp(JobDefaults(script));

  const std::string id = Json::parse(Create({{"type", "train"}, {"spec", Spec()}}).body)["id"];
  Follow(id);

  const Json job = Json::parse(AskAdmin("GET", "/admin/jobs/" + id).body);
  EXPECT_EQ(job["result"]["model"], "bard") << job;
  EXPECT_TRUE(job["result"].contains("path")) << job;
  EXPECT_EQ(job["result"]["adapter_dir"], "adapter");
  EXPECT_EQ(Get("/v1/models/bard").status, 200);
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
    return "DELETE /v1/models/" + std::string(id) + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
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

TEST_F(AppJobsTest, AModelThatDoesNotFitIsKeptAndServedByTheNextServer) {
  AppOptions options = JobDefaults(Finishing());
  options.engine.memory_bytes = 48 << 20;  // fits one such model with its 32 MiB of keys and values
  StartApp(options);
  const std::string id = Json::parse(Create({{"type", "train"}, {"spec", Spec()}}).body)["id"];

  const std::string events = Follow(id);

  EXPECT_NE(events.find("complete, but not served"), std::string::npos) << events;
  EXPECT_NE(events.find("of the memory budget of 48.0 MiB are free"), std::string::npos) << events;
  EXPECT_TRUE(events.ends_with("event: end\ndata: {\"status\":\"succeeded\"}\n\n")) << events;
  EXPECT_EQ(Get("/v1/models/bard").status, 404);

  app_.reset();
  options.engine.memory_bytes = 128 << 20;
  StartApp(options);

  EXPECT_EQ(Json::parse(Get("/v1/models/bard").body)["owned_by"], "user");
}

TEST_F(AppJobsTest, ANameThatAModelHasGotMeanwhileStaysItsOwn) {
  AppOptions options =
      JobDefaults("while [ ! -e \"$dir/go\" ]; do sleep 0.01; done\n" + Finishing());
  options.engine.kv_cache_bytes = 1 << 20;
  std::filesystem::copy(directory_->path() / "tiny", scratch_.path() / "root" / "small",
                        std::filesystem::copy_options::recursive);
  StartApp(options);
  const std::string id = Json::parse(Create({{"type", "train"}, {"spec", Spec()}}).body)["id"];
  const Json load = {{"path", "small"}, {"id", "bard"}, {"wait", true}};
  EXPECT_EQ(Ask(Post("/admin/models/load", load.dump(), kAdmin)).status, 200);

  std::ofstream(options.data_dir / "jobs" / id / "go") << "";
  Follow(id);

  EXPECT_EQ(Json::parse(Get("/v1/models/bard").body)["owned_by"], "local");
  EXPECT_EQ(Json::parse(Get("/v1/models/" + id).body)["owned_by"], "user");
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
  follower.Send("GET /admin/jobs/" + id + "/log?follow=true HTTP/1.1\r\nHost: localhost\r\n" +
                kAdmin + "\r\n");
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
  follower.Send("GET /admin/jobs/" + id + "/log?follow=true HTTP/1.1\r\nHost: localhost\r\n" +
                kAdmin + "\r\n");
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
  const auto with_adapter = [&](const char* pointer, const Json& value) {
    Json body = with(pointer, value);
    body["spec"]["model"]["load_parameters_path"] = "text.txt";
    return body;
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
      {with_adapter("/lora/load_path", "../secret.txt"), 400, "invalid_path"},
      {with_adapter("/lora.lora_restore_path", "/etc"), 400, "invalid_path"},
      {with("/model/chat_template", "link.txt"), 400, "invalid_path"},
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

TEST_F(AppJobsTest, ADryRunSaysWhatARunTakesAndStartsNothing) {
  StartApp(JobDefaults("exit 0\n"));
  std::filesystem::copy(directory_->path() / "tiny", scratch_.path() / "root" / "tiny",
                        std::filesystem::copy_options::recursive);
  Json spec = {{"train", {{"steps", 3}, {"per_device_batch_size", 4}}},
               {"data", {{"train", "text.txt"}, {"max_target_length", 32}}},
               {"model", {{"load_parameters_path", "tiny"}}}};
  const auto plan = [&] {
    const auto reply = Create({{"type", "train"}, {"spec", spec}, {"dry_run", true}});
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  };

  const Json fitting = plan();
  EXPECT_TRUE(fitting["fits"]) << fitting;
  EXPECT_EQ(fitting["steps"], 3);
  EXPECT_GT(fitting["flops"], 0);
  EXPECT_GT(fitting["seconds"], 0);
  int64_t total = 0;
  for (const Json& bytes : fitting["bytes"]) total += bytes.get<int64_t>();
  EXPECT_EQ(fitting["total_bytes"], total);
  spec["resources"] = {{"memory_max_bytes", total - 1}};
  const Json refused = plan();
  EXPECT_FALSE(refused["fits"]) << refused;
  EXPECT_FALSE(refused["changes"].empty());
  EXPECT_EQ(Json::parse(AskAdmin("GET", "/admin/jobs").body)["data"].size(), 0u);
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
