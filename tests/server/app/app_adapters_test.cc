#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/app/app_adapters_fixture.h"

namespace tandem::server {
namespace {

TEST_F(AppAdaptersTest, AnAdapterIsLoadedReplacedAndUnloadedWhileTheServerRuns) {
  StartApp(WithAdmin());
  const std::string plain = Says("tiny");

  const Json one = Load("style", "one");

  EXPECT_EQ(one["name"], "style");
  EXPECT_EQ(one["base"], "tiny");
  EXPECT_EQ(one["path"], "one");
  EXPECT_EQ(one["rank"], 4);
  EXPECT_EQ(one["state"], "loaded");
  EXPECT_GT(one["memory_bytes"], 0);
  const std::string first = Says("style");
  EXPECT_NE(first, plain);
  EXPECT_EQ(Says("tiny"), plain);
  EXPECT_EQ(Json::parse(Get("/v1/models/style").body)["parent"], "tiny");
  EXPECT_EQ(Fault(Admin("/admin/adapters/load", {{"name", "style"}, {"path", "two"}})),
            Faulty(409, "already_exists"));
  EXPECT_EQ(Says("style"), first);

  EXPECT_EQ(Load("style", "two", true)["rank"], 8);

  EXPECT_NE(Says("style"), first);
  Load("again", "one");
  EXPECT_EQ(Says("again"), first) << "the same files say the same under every name";
  const Json list = Json::parse(AdminWithout("GET", "/admin/adapters").body);
  ASSERT_EQ(list["data"].size(), 2U);
  EXPECT_EQ(Admin("/admin/adapters/unload", {{"name", "style"}}).status, 200);
  EXPECT_EQ(Fault(Admin("/admin/adapters/unload", {{"name", "style"}})),
            Faulty(404, "adapter_not_found"));
  EXPECT_EQ(Fault(Admin("/admin/adapters/unload", {{"name", "tiny"}})),
            Faulty(404, "adapter_not_found"));
  EXPECT_EQ(Get("/v1/models/style").status, 404);
  EXPECT_EQ(Says("again"), first);
  EXPECT_EQ(Says("tiny"), plain);
}

TEST_F(AppAdaptersTest, WhatDoesNotFitIsRefusedByNameAndNothingIsHeld) {
  StartApp(WithAdmin());
  const std::filesystem::path root = directory_->path();
  std::filesystem::create_directory(root / "cut");
  std::filesystem::copy_file(root / "one" / "adapter_config.json",
                             root / "cut" / "adapter_config.json");
  std::filesystem::copy_file(root / "one" / "adapter_model.safetensors",
                             root / "cut" / "adapter_model.safetensors");
  std::filesystem::resize_file(root / "cut" / "adapter_model.safetensors", 2000);
  const auto used = [&] {
    return Json::parse(AdminWithout("GET", "/admin/models").body)["memory"]["used_bytes"];
  };
  const Json before = used();

  const auto other = Admin("/admin/adapters/load", {{"name", "x"}, {"path", "of-another"}});
  EXPECT_EQ(Fault(other), Faulty(400, "invalid_adapter"));
  EXPECT_NE(other.body.find("layers.2"), std::string::npos) << other.body;
  EXPECT_EQ(Fault(Admin("/admin/adapters/load", {{"name", "x"}, {"path", "cut"}})),
            Faulty(400, "invalid_adapter"));
  EXPECT_EQ(Fault(Admin("/admin/adapters/load", {{"name", "x"}, {"path", "nowhere"}})),
            Faulty(404, "path_not_found"));
  EXPECT_EQ(Fault(Admin("/admin/adapters/load", {{"name", "x"}, {"path", "tiny"}})),
            Faulty(404, "path_not_found"))
      << "a model is no adapter";
  EXPECT_EQ(Fault(Admin("/admin/adapters/load", {{"name", "x"}, {"path", "../etc"}})),
            Faulty(400, "invalid_path"));
  EXPECT_EQ(Fault(Admin("/admin/adapters/load", {{"name", "a b"}, {"path", "one"}})),
            Faulty(400, "invalid_value"));
  EXPECT_EQ(Fault(Admin("/admin/adapters/load", {{"name", "tiny"}, {"path", "one"}})),
            Faulty(409, "already_exists"));
  EXPECT_EQ(
      Fault(Admin("/admin/adapters/load", {{"name", "tiny"}, {"path", "one"}, {"replace", true}})),
      Faulty(409, "already_exists"));
  EXPECT_EQ(
      Fault(Admin("/admin/adapters/load", {{"name", "x"}, {"path", "one"}, {"base", "nobody"}})),
      Faulty(404, "model_not_found"));
  EXPECT_EQ(Fault(Admin("/admin/adapters/load", {{"name", "x"}, {"path", "one"}, {"rnk", 4}})),
            Faulty(400, "invalid_value"));

  EXPECT_EQ(used(), before);
  Load("x", "one");
  EXPECT_EQ(Fault(Admin("/admin/adapters/load", {{"name", "y"}, {"path", "one"}, {"base", "x"}})),
            Faulty(400, "invalid_value"));
}

TEST_F(AppAdaptersTest, VllmsRoutesAnswerInItsWords) {
  StartApp(WithAdmin());
  const Json load = {{"lora_name", "sql"}, {"lora_path", "one"}};

  const auto loaded = Admin("/v1/load_lora_adapter", load);

  EXPECT_EQ(loaded.status, 200);
  EXPECT_EQ(loaded.body, "Success: LoRA adapter 'sql' added successfully.");
  const std::string first = Says("sql");
  EXPECT_EQ(Fault(Admin("/v1/load_lora_adapter", load)), Faulty(400, "already_exists"));
  EXPECT_EQ(Admin("/v1/load_lora_adapter",
                  {{"lora_name", "sql"}, {"lora_path", "two"}, {"load_inplace", true}})
                .status,
            200);
  EXPECT_NE(Says("sql"), first);
  EXPECT_EQ(Fault(Admin("/v1/load_lora_adapter", {{"lora_name", "x"}, {"lora_path", "nowhere"}})),
            Faulty(404, "path_not_found"));
  EXPECT_EQ(Fault(Admin("/v1/load_lora_adapter", {{"lora_name", "x"}})),
            Faulty(400, "missing_required_parameter"));
  EXPECT_EQ(Ask(Post("/v1/load_lora_adapter", load.dump())).status, 401);
  const auto unloaded = Admin("/v1/unload_lora_adapter", {{"lora_name", "sql"}});
  EXPECT_EQ(unloaded.body, "Success: LoRA adapter 'sql' removed successfully.");
  EXPECT_EQ(Fault(Admin("/v1/unload_lora_adapter", {{"lora_name", "sql"}})),
            Faulty(404, "adapter_not_found"));
}

TEST_F(AppAdaptersTest, EveryLoadIsAJob) {
  StartApp(WithAdmin());
  const Json asked = {{"name", "a"}, {"path", "one"}};
  Admin("/admin/adapters/load", asked);
  Admin("/v1/load_lora_adapter", {{"lora_name", "b"}, {"lora_path", "of-another"}});
  Admin("/admin/adapters/load", asked);  // refused at once: the name is taken

  const Json jobs = Member(AdminWithout("GET", "/admin/jobs?type=adapter_load"), "data");

  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(jobs[1]["status"], "succeeded");
  EXPECT_EQ(jobs[1]["request"], asked);
  EXPECT_EQ(jobs[1]["progress"], 1);
  EXPECT_EQ(jobs[1]["result"]["adapter"], "a");
  EXPECT_EQ(jobs[1]["result"]["base"], "tiny");
  EXPECT_EQ(jobs[1]["result"]["rank"], 4);
  EXPECT_GT(jobs[1]["result"]["memory_bytes"], 0);
  EXPECT_GE(jobs[1]["finished_at"], jobs[1]["started_at"]);
  EXPECT_EQ(jobs[0]["status"], "failed");
  EXPECT_EQ(jobs[0]["error"]["code"], "invalid_adapter");
  EXPECT_NE(jobs[0]["error"]["message"].get<std::string>().find("layers.2"), std::string::npos);
  EXPECT_EQ(jobs[0]["request"]["lora_name"], "b");
}

TEST_F(AppAdaptersTest, WithoutADataDirectoryAdaptersAreLoadedAllTheSame) {
  AppOptions options = WithAdmin();
  options.data_dir.clear();
  StartApp(std::move(options));
  const std::string plain = Says("tiny");

  Load("a", "one");

  EXPECT_NE(Says("a"), plain);
}

TEST_F(AppAdaptersTest, AnAliasIsSwitchedRolledBackAndThereAfterARestart) {
  StartApp(WithAdmin());
  Load("a", "one");
  Load("b", "two");
  const std::string of_a = Says("a");
  const std::string of_b = Says("b");
  EXPECT_EQ(Fault(AdminWithout("GET", "/admin/aliases/prod")), Faulty(404, "alias_not_found"));

  EXPECT_TRUE(Member(Put("/admin/aliases/prod", {{"target", "a"}}), "previous").is_null());
  EXPECT_EQ(Says("prod"), of_a);
  EXPECT_EQ(Member(Put("/admin/aliases/prod", {{"target", "b"}}), "previous"), "a");
  EXPECT_EQ(Says("prod"), of_b);
  EXPECT_EQ(Member(Put("/admin/aliases/prod", {{"target", "a"}}), "previous"), "b");
  EXPECT_EQ(Says("prod"), of_a);
  EXPECT_EQ(Fault(Put("/admin/aliases/prod", {{"target", "nobody"}})),
            Faulty(404, "model_not_found"));
  EXPECT_EQ(Fault(Put("/admin/aliases/a", {{"target", "b"}})), Faulty(409, "already_exists"));
  EXPECT_EQ(Member(AdminWithout("GET", "/admin/aliases/prod"), "target"), "a");
  EXPECT_EQ(Fault(Admin("/admin/models/unload", {{"id", "prod"}})), Faulty(409, "in_use"));
  EXPECT_EQ(Fault(Ask(std::string("DELETE /v1/models/prod HTTP/1.1\r\nHost: localhost\r\n") +
                      kAdmin + "\r\n")),
            Faulty(403, "model_protected"));
  Put("/admin/aliases/stable", {{"target", "tiny"}});

  app_.reset();
  StartApp(WithAdmin());

  EXPECT_EQ(Says("stable"), Says("tiny"));
  const Json list = Json::parse(AdminWithout("GET", "/admin/aliases").body)["data"];
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0]["name"], "prod");
  EXPECT_EQ(list[0]["served"], false) << "its adapter was loaded by hand";
  Json body = Chat("hello");
  body["model"] = "prod";
  const auto dangling = Ask(Post("/v1/chat/completions", body.dump()));
  EXPECT_EQ(Fault(dangling), Faulty(404, "model_not_found"));
  EXPECT_NE(dangling.body.find("alias"), std::string::npos);
  Load("a", "one");
  EXPECT_EQ(Says("prod"), of_a);
  EXPECT_EQ(Member(AdminWithout("DELETE", "/admin/aliases/prod"), "previous"), "a");
  EXPECT_EQ(Fault(AdminWithout("DELETE", "/admin/aliases/prod")), Faulty(404, "alias_not_found"));
}

// Each answer comes from one adapter, and none fails.
TEST_F(AppAdaptersTest, SwitchingUnderLoadMixesNoAnswersUp) {
  StartApp(WithAdmin());
  Load("a", "one");
  Load("b", "two");
  const std::vector<std::string> known = {Says("a"), Says("b")};
  Put("/admin/aliases/prod", {{"target", "a"}});
  std::atomic<bool> is_over{false};
  std::atomic<int> n_answers{0};
  std::atomic<int> n_wrong{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back([&] {
      while (!is_over) {
        const std::string answer = Says("prod");
        if (std::find(known.begin(), known.end(), answer) == known.end()) ++n_wrong;
        ++n_answers;
      }
    });
  }
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(Put("/admin/aliases/prod", {{"target", i % 2 == 0 ? "b" : "a"}}).status, 200);
    Load("extra", i % 2 == 0 ? "one" : "two", true);
    // Replaces the alias's own target with the same content.
    Load("a", "one", true);
  }
  while (n_answers < 20) std::this_thread::yield();
  is_over = true;
  for (std::thread& client : clients) client.join();

  EXPECT_EQ(n_wrong, 0);
  Admin("/admin/adapters/unload", {{"name", "extra"}});
  WaitUntilIdle();
}

}  // namespace
}  // namespace tandem::server
