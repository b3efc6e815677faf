// Files and jobs looked at before training: POST /v1/files/{id}/examine and /v1/fine_tuning/plan.

#include <fstream>
#include <iterator>
#include <string>

#include "tests/server/app/app_fixture.h"
#include "tests/support/paths.h"

namespace tandem::server {
namespace {

std::string GoodRow(const std::string& answer) {
  return R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":")" + answer +
         "\"}]}\n";
}

std::string GoodRows(int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += GoodRow("answer " + std::to_string(i));
  return text;
}

class AppExamineTest : public AppTest {
 protected:
  // Its template writes answers on lines of their own, so that none shares a token with the text
  // around it.
  static void SetUpTestSuite() {
    AppTest::SetUpTestSuite();
    tests::TinyModelOptions options;
    options.chat_template =
        "{{ bos_token }}{% for m in messages %}<turn>{{ m['role'] }}:\n{{ m['content'] }}\n"
        "{% endfor %}{% if add_generation_prompt %}<turn>assistant:\n{% endif %}";
    std::filesystem::remove_all(directory_->path() / "tiny");
    std::filesystem::create_directory(directory_->path() / "tiny");
    tests::WriteTinyModel(directory_->path() / "tiny", options);
  }
  void SetUp() override { StartApp(ExamineDefaults()); }

  AppOptions ExamineDefaults() {
    AppOptions options = Defaults();
    options.admin_key = "root";
    options.data_dir = scratch_.path() / "data";
    options.model_root = directory_->path();
    return options;
  }
  std::string Upload(const std::string& filename, const std::string& content,
                     const std::string& headers = "") {
    const std::string body =
        "--xyz\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nfine-tune\r\n"
        "--xyz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" +
        filename + "\"\r\n\r\n" + content + "\r\n--xyz--\r\n";
    const auto reply = Ask("POST /v1/files HTTP/1.1\r\nHost: localhost\r\n" + headers +
                           "Content-Type: multipart/form-data; boundary=xyz\r\nContent-Length: " +
                           std::to_string(body.size()) + "\r\n\r\n" + body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body)["id"];
  }
  Json Examine(const std::string& id, Json body = Json::object(), int status = 200) {
    body["model"] = "tiny";
    return PostJson("/v1/files/" + id + "/examine", body, status);
  }
  Json Plan(const std::string& id, Json hyperparameters = Json::object()) {
    return PostJson("/v1/fine_tuning/plan", {{"model", "tiny"},
                                             {"training_file", id},
                                             {"hyperparameters", std::move(hyperparameters)}});
  }
  static std::string LearnedText(const Json& sequence) {
    std::string text;
    for (const Json& token : sequence["tokens"]) {
      if (token["loss"] == true && token["special"] == false) text += token["text"];
    }
    return text;
  }
  static std::string FixtureBytes(const std::string& name) {
    std::ifstream file(tests::SourceDir() / "tests/training/data/parquet/fixtures" / name,
                       std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  tests::TemporaryDir scratch_;
};

TEST_F(AppExamineTest, NamesBadRowsByLineAndShowsWhatIsLearned) {
  const std::string id =
      Upload("rows.jsonl", GoodRow("yes") + "no JSON\n" + "{\"messages\":[]}\n" + GoodRow("no"));

  const Json found = Examine(id);

  EXPECT_EQ(found["complete"], true);
  EXPECT_EQ(found["stopped_by"], nullptr);
  EXPECT_EQ(found["rows"], 4);
  EXPECT_EQ(found["checked_rows"], 4);
  EXPECT_EQ(found["bad_rows"], 2);
  ASSERT_EQ(found["errors"].size(), 2u) << found;
  EXPECT_EQ(found["errors"][0]["line"], 2);
  EXPECT_EQ(found["errors"][1]["line"], 3);
  EXPECT_EQ(found["samples"], 2);
  EXPECT_EQ(found["format"], "messages");
  ASSERT_EQ(found["examples"].size(), 2u);
  EXPECT_NE(LearnedText(found["examples"][0]).find("yes"), std::string::npos) << found;
  EXPECT_EQ(LearnedText(found["examples"][0]).find("Hi"), std::string::npos) << found;
  int64_t counted = 0;
  for (const Json& bar : found["tokens"]["histogram"]) counted += bar["samples"].get<int64_t>();
  EXPECT_EQ(counted, 2);
}

TEST_F(AppExamineTest, SaysThatItHasReadOnlyAPart) {
  const std::string id = Upload("rows.jsonl", GoodRows(20));

  const Json part = Examine(id, {{"rows", 7}, {"examples", 1}});

  EXPECT_EQ(part["complete"], false);
  EXPECT_EQ(part["stopped_by"], "rows");
  EXPECT_EQ(part["rows"], 20);
  EXPECT_EQ(part["checked_rows"], 7);
  EXPECT_EQ(part["samples"], 7);
  EXPECT_EQ(part["examples"].size(), 1u);
  EXPECT_EQ(Examine(id, {{"rows", 20}})["complete"], true);
  EXPECT_EQ(Examine(id, {{"examples", 0}})["examples"].size(), 0u);
}

TEST_F(AppExamineTest, ReadsCsvAndPairsAndParquet) {
  const std::string csv = Upload("rows.csv", "prompt,completion\nq,\"a, b\"\nq,a,c\n\"q\nr\",c\n");
  const Json found = Examine(csv);
  EXPECT_EQ(found["container"], "csv");
  EXPECT_EQ(found["format"], "prompt_completion");
  EXPECT_EQ(found["bad_rows"], 1);
  EXPECT_EQ(found["errors"][0]["line"], 3);
  EXPECT_EQ(found["errors"][0]["message"], "has 3 fields, the header has 2");
  ASSERT_EQ(found["examples"].size(), 2u) << found;
  EXPECT_NE(LearnedText(found["examples"][0]).find("a, b"), std::string::npos);

  const std::string pairs = Upload("pairs.csv", "prompt,chosen,rejected\nq,good,bad\n");
  const Json of_pairs = Examine(pairs, {{"method", "dpo"}});
  EXPECT_EQ(of_pairs["format"], "preference");
  ASSERT_EQ(of_pairs["examples"].size(), 1u) << of_pairs;
  EXPECT_NE(LearnedText(of_pairs["examples"][0]["chosen"]).find("good"), std::string::npos);
  EXPECT_NE(LearnedText(of_pairs["examples"][0]["rejected"]).find("bad"), std::string::npos);

  const Json chats = Examine(Upload("chat.parquet", FixtureBytes("chat--zstd.parquet")));
  EXPECT_EQ(chats["container"], "parquet");
  EXPECT_GT(chats["rows"], 0) << chats;
}

TEST_F(AppExamineTest, FindsNothingInFilesWithoutRows) {
  for (const auto& [name, content] :
       {std::pair<std::string, std::string>("a.jsonl", std::string("\x00\x01\x02{", 4)),
        {"b.jsonl", "\n \n"},
        {"c.csv", "prompt,completion\n"},
        {"d.parquet", "PAR1 nothing PAR1"},
        {"e.jsonl", "PAR1..."},
        {"f.jsonl", R"({"nothing":1})"},
        {"g.parquet", FixtureBytes("empty--no-rows.parquet")},
        {"h.csv", "a;b\n1;2\n"}}) {
    const Json found = Examine(Upload(name, content), {{"format", "auto"}});
    EXPECT_EQ(found["samples"], 0) << name;
    EXPECT_EQ(found["bad_rows"], 1) << name << found;
    ASSERT_EQ(found["errors"].size(), 1u) << name;
    EXPECT_EQ(found["errors"][0]["line"], nullptr) << name;
    // The path of the upload on the server is no part of the message.
    EXPECT_EQ(found["errors"][0]["message"].get<std::string>().find(scratch_.path().string()),
              std::string::npos)
        << found;
  }
}

TEST_F(AppExamineTest, ARowThatIsHugeIsOneBadRow) {
  const std::string id =
      Upload("rows.jsonl", GoodRow("a") + GoodRow(std::string(17 << 20, 'x')) + GoodRow("b"));

  const Json found = Examine(id);

  EXPECT_EQ(found["samples"], 2);
  EXPECT_EQ(found["errors"][0]["line"], 2);
  EXPECT_NE(found["errors"][0]["message"].get<std::string>().find("the limit is"),
            std::string::npos);
}

TEST_F(AppExamineTest, ListsAtMost4096TokensOfASample) {
  std::string words;
  for (int i = 0; i < 6000; ++i) words += "x ";
  const Json found = Examine(Upload("rows.jsonl", GoodRow(words)));

  ASSERT_EQ(found["examples"].size(), 1u) << found;
  EXPECT_EQ(found["examples"][0]["tokens"].size(), 4096u);
  EXPECT_GT(found["examples"][0]["count"], 4096);
}

TEST_F(AppExamineTest, RefusesWhatItDoesNotKnow) {
  const std::string id = Upload("rows.jsonl", GoodRow("a"));

  EXPECT_EQ(Examine("file-000000000000000000000000", {}, 404)["error"]["code"], "file_not_found");
  EXPECT_EQ(PostJson("/v1/files/" + id + "/examine", {{"model", "nobody"}}, 404)["error"]["code"],
            "model_not_found");
  EXPECT_EQ(Examine(id, {{"method", "grpo"}}, 400)["error"]["param"], "method");
  EXPECT_EQ(Examine(id, {{"rows", 0}}, 400)["error"]["param"], "rows");
  EXPECT_EQ(Examine(id, {{"rows", 1e9}}, 400)["error"]["param"], "rows");
  EXPECT_EQ(Examine(id, {{"lines", 1}}, 400)["error"]["param"], "lines");
  EXPECT_EQ(Examine(id, {{"format", "preference"}}, 400)["error"]["param"], "format");
  EXPECT_EQ(Examine(id, {{"seq_len", 1 << 29}}, 400)["error"]["code"], "invalid_value");
}

TEST_F(AppExamineTest, AnotherKeysFileIsNotFound) {
  app_.reset();
  AppOptions options = ExamineDefaults();
  options.api_keys = {"one", "two"};
  options.isolate_keys = true;
  StartApp(std::move(options));
  const std::string one = "Authorization: Bearer one\r\n";
  const std::string two = "Authorization: Bearer two\r\n";
  const std::string id = Upload("rows.jsonl", GoodRows(12), one);
  const std::string body = Json{{"model", "tiny"}}.dump();
  const std::string job = Json{{"model", "tiny"}, {"training_file", id}}.dump();

  EXPECT_EQ(Ask(Post("/v1/files/" + id + "/examine", body, one)).status, 200);
  EXPECT_EQ(Ask(Post("/v1/files/" + id + "/examine", body, two)).status, 404);
  EXPECT_EQ(Ask(Post("/v1/fine_tuning/plan", job, one)).status, 200);
  EXPECT_EQ(Ask(Post("/v1/fine_tuning/plan", job, two)).status, 404);
  EXPECT_EQ(Ask(Post("/v1/files/" + id + "/examine", body)).status, 401);
}

TEST_F(AppExamineTest, APlanHasTheChoicesTheMemoryAndTheTime) {
  const Json plan = Plan(Upload("rows.jsonl", GoodRows(12)), {{"n_epochs", 2}});

  EXPECT_EQ(plan["would_start"], true) << plan;
  EXPECT_EQ(plan["refusal"], nullptr);
  EXPECT_EQ(plan["hyperparameters"]["n_epochs"], 2);
  EXPECT_EQ(plan["hyperparameters"]["batch_size"], 1);
  EXPECT_EQ(plan["steps"], 24);
  EXPECT_EQ(plan["steps_per_epoch"], 12);
  EXPECT_EQ(plan["samples"], 12);
  EXPECT_EQ(plan["is_checked"], true);
  EXPECT_EQ(plan["fits"], true);
  EXPECT_GT(plan["total_bytes"], 0);
  EXPECT_GT(plan["seconds"], 0);
  EXPECT_GT(plan["speed"]["peak_flops_per_second"], 0);
  int64_t sum = 0;
  for (const auto& [kind, bytes] : plan["bytes"].items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(plan["total_bytes"], sum);
}

TEST_F(AppExamineTest, APlanSaysWhyTheJobWouldBeRefused) {
  const Json bad = Plan(Upload("rows.jsonl", GoodRows(12) + "nothing\n"));
  EXPECT_EQ(bad["would_start"], false);
  EXPECT_EQ(bad["refusal"]["code"], "invalid_training_file");
  EXPECT_EQ(bad["refusal"]["param"], "training_file");
  EXPECT_NE(bad["refusal"]["message"].get<std::string>().find("line 13: "), std::string::npos);

  const std::string few = Upload("rows.jsonl", GoodRows(3));
  const Json job = {{"model", "tiny"}, {"training_file", few}};
  EXPECT_EQ(PostJson("/v1/fine_tuning/jobs", job, 400)["error"]["message"],
            Plan(few)["refusal"]["message"]);

  const std::string good = Upload("rows.jsonl", GoodRows(12));
  const Json controls = Plan(good, {{"samples", {{"every", 1}, {"prompts", {"a"}}}}});
  EXPECT_EQ(controls["would_start"], true) << controls;
}

TEST_F(AppExamineTest, AModelThatCouldBeLoadedIsPlannedWithoutLoading) {
  const auto admin = [&](const std::string& path, const Json& body) {
    return Ask(Post(path, body.dump(), "Authorization: Bearer root\r\n"));
  };

  const auto list = Get("/admin/models/available", "Authorization: Bearer root\r\n");
  ASSERT_EQ(list.status, 200) << list.body;
  const Json available = Json::parse(list.body);
  bool is_listed = false;
  for (const Json& model : available["data"]) {
    if (model["path"] != "tiny") continue;
    is_listed = true;
    EXPECT_EQ(model["kind"], "directory");
    EXPECT_EQ(model["loaded_as"], (Json{"tiny"}));
  }
  EXPECT_TRUE(is_listed) << available;
  const auto before = Json::parse(Get("/v1/models").body)["data"].size();

  const auto planned = admin("/admin/models/plan", {{"path", "tiny"}, {"dtype", "int8"}});
  ASSERT_EQ(planned.status, 200) << planned.body;
  const Json plan = Json::parse(planned.body);
  EXPECT_EQ(plan["fits"], true);
  EXPECT_EQ(plan["dtype"], "int8");
  EXPECT_GT(plan["least"]["total"], 0);
  EXPECT_EQ(Json::parse(Get("/v1/models").body)["data"].size(), before);

  EXPECT_EQ(admin("/admin/models/plan", {{"path", "nothing"}}).status, 404);
  EXPECT_EQ(admin("/admin/models/plan", {{"path", "../x"}}).status, 400);
  EXPECT_EQ(admin("/admin/models/plan", {{"path", "tiny"}, {"id", "x"}}).status, 400);
  EXPECT_EQ(Get("/admin/models/available").status, 401);
}

}  // namespace
}  // namespace tandem::server
