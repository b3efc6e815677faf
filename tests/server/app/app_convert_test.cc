// POST /admin/convert: the spec of the conversion job, and requests that are refused at once.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/io/atomic_write.h"
#include "tests/server/app/app_adapters_fixture.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

// Plays `tandem convert --job DIR`: reports success at once.
class AppConvertTest : public AppAdaptersTest {
 protected:
  AppConvertTest() {
    const fs::path program = scratch_.path() / "convert.sh";
    std::ofstream(program) << "#!/bin/sh\necho $1 $2\n"
                              "printf '{\"status\":\"succeeded\",\"path\":\"out\",\"tensors\":7}' "
                              "> \"$3/r\"\nmv \"$3/r\" \"$3/result.json\"\n";
    fs::permissions(program, fs::perms::owner_all);
    AppOptions options = WithAdmin();
    options.jobs.program = program;
    options.jobs.poll_interval = 5ms;
    StartApp(std::move(options));
    Load("style", "one");
  }
  static Json Body(const Json& source, const std::string& name = "out") {
    return {{"source", source}, {"target", {{"format", "hf"}, {"name", name}}}};
  }
  // The spec that the job's process reads.
  Json SpecOf(const std::string& id) {
    return Json::parse(
        engine::ReadWholeFile(scratch_.path() / "data" / "jobs" / id / "spec.json", 1 << 20));
  }
  static fs::path Root() { return fs::absolute(directory_->path()); }
};

TEST_F(AppConvertTest, AnAdapterIsAJobThatMergesItIntoItsBase) {
  Json body = Body({{"model", "style"}});
  body["target"]["dtype"] = "f32";

  const auto reply = Admin("/admin/convert", body);

  ASSERT_EQ(reply.status, 202) << reply.body;
  const Json job = Json::parse(reply.body);
  const std::string id = job["id"];
  EXPECT_EQ(job["type"], "convert");
  EXPECT_EQ(job["request"], body);
  EXPECT_EQ(reply.headers.at("location"), "/admin/jobs/" + id);
  const Json spec = SpecOf(id);
  EXPECT_EQ(fs::path(spec["source"].get<std::string>()), Root() / "one");
  EXPECT_EQ(fs::path(spec["base"].get<std::string>()), Root() / "tiny");
  EXPECT_EQ(fs::path(spec["target"].get<std::string>()), Root() / "out");
  EXPECT_EQ(spec["format"], "hf");
  EXPECT_EQ(spec["dtype"], "f32");
  EXPECT_EQ(spec["verify"], true);
  EXPECT_EQ(spec["overwrite"], false);
  EXPECT_EQ(AdminWithout("GET", "/admin/jobs/" + id + "/log?follow=true").status, 200);
  const Json ended = Json::parse(AdminWithout("GET", "/admin/jobs/" + id).body);
  EXPECT_EQ(ended["status"], "succeeded") << ended;
  EXPECT_EQ(ended["result"], (Json{{"path", "out"}, {"tensors", 7}}));
}

TEST_F(AppConvertTest, ModelsAndPathsAreSourcesToo) {
  const auto spec_of = [&](const Json& source) {
    const auto reply = Admin("/admin/convert", Body(source));
    EXPECT_EQ(reply.status, 202) << reply.body;
    return SpecOf(Json::parse(reply.body)["id"]);
  };
  const Json model = spec_of({{"model", "tiny"}});
  EXPECT_EQ(fs::path(model["source"].get<std::string>()), Root() / "tiny");
  EXPECT_EQ(model["base"], "");
  EXPECT_EQ(spec_of({{"path", "deeper"}})["source"], (Root() / "deeper").string());
  const Json adapter = spec_of({{"path", "two"}, {"base", "tiny"}});
  EXPECT_EQ(adapter["source"], (Root() / "two").string());
  EXPECT_EQ(adapter["base"], (Root() / "tiny").string());
  Json held = Body({{"path", "deeper"}});
  held["max_kl"] = 0.25;
  const auto held_reply = Admin("/admin/convert", held);
  EXPECT_EQ(SpecOf(Json::parse(held_reply.body)["id"])["max_kl"], 0.25) << held_reply.body;
  held.update({{"certificate", false}});
  EXPECT_EQ(Fault(Admin("/admin/convert", held)), Faulty(400, "invalid_value"));
  // POST /admin/jobs accepts the same spec.
  EXPECT_EQ(
      Admin("/admin/jobs", {{"type", "convert"}, {"spec", Body({{"path", "deeper"}})}}).status,
      202);
}

TEST_F(AppConvertTest, ABaseIsALoadedModelOrAPath) {
  const auto spec_of = [&](const Json& source, const Json& target = Json::object()) {
    Json body = Body(source);
    body["target"].update(target);
    const auto reply = Admin("/admin/convert", body);
    EXPECT_EQ(reply.status, 202) << reply.body;
    const Json spec = SpecOf(Json::parse(reply.body)["id"]);
    return std::pair{fs::path(spec["source"].get<std::string>()),
                     fs::path(spec["base"].get<std::string>())};
  };
  const auto pair = [&](const char* source, const char* base) {
    return std::pair{Root() / source, Root() / base};
  };
  const Json peft = {{"format", "peft"}, {"rank", 2}};
  ASSERT_EQ(
      Admin("/admin/models/load", {{"path", "deeper"}, {"id", "tuned"}, {"wait", true}}).status,
      200);
  ASSERT_EQ(Put("/admin/aliases/best", {{"target", "tuned"}}).status, 200);

  EXPECT_EQ(spec_of({{"model", "tuned"}, {"base", "tiny"}}, peft), pair("deeper", "tiny"));
  EXPECT_EQ(spec_of({{"model", "best"}, {"base", "tiny"}}, peft), pair("deeper", "tiny"));
  EXPECT_EQ(spec_of({{"model", "tiny"}, {"base", "best"}}, peft), pair("tiny", "deeper"));
  // An adapter is merged into its base, unless another is named.
  EXPECT_EQ(spec_of({{"model", "style"}}), pair("one", "tiny"));
  EXPECT_EQ(spec_of({{"model", "style"}, {"base", "tuned"}}), pair("one", "deeper"));
  // A base given with a path is looked up as a path first.
  EXPECT_EQ(spec_of({{"path", "two"}, {"base", "tuned"}}), pair("two", "deeper"));
  ASSERT_EQ(
      Admin("/admin/models/load", {{"path", "tiny"}, {"id", "deeper"}, {"wait", true}}).status,
      200);
  EXPECT_EQ(spec_of({{"path", "two"}, {"base", "deeper"}}), pair("two", "deeper"));
  EXPECT_EQ(spec_of({{"model", "tuned"}, {"base", "deeper"}}, peft), pair("deeper", "tiny"));
}

TEST_F(AppConvertTest, WhatCannotBeConvertedIsRefusedAtOnce) {
  const auto with = [](const char* pointer, const Json& value) {
    Json body = Body({{"model", "style"}});
    body[Json::json_pointer(pointer)] = value;
    return body;
  };
  struct Case {
    Json body;
    Faulty fault;
    const char* param;
    const char* word;
  };
  const std::vector<Case> cases = {
      {with("/source/model", "nobody"), {404, "model_not_found"}, "source.model", "nobody"},
      {Body({{"path", "nowhere"}}), {404, "path_not_found"}, "source.path", "nowhere"},
      {Body({{"path", "../etc"}}), {400, "invalid_path"}, "source.path", ""},
      {Body({{"path", "two"}}), {400, "missing_required_parameter"}, "source.base", "base"},
      {Body({{"path", "two"}, {"base", "one"}}), {400, "invalid_value"}, "source.base", ""},
      {Body({{"path", "tiny/config.json"}}),
       {400, "unsupported_value"},
       "source",
       "one file of a model"},
      {Body(Json::object()), {400, "invalid_value"}, "source", ""},
      {Body({{"model", "style"}, {"path", "one"}}), {400, "invalid_value"}, "source", ""},
      {Body({{"model", "style"}, {"base", "nobody"}}),
       {404, "model_not_found"},
       "source.base",
       "nobody"},
      {Body({{"model", "style"}, {"base", "style"}}),
       {400, "invalid_value"},
       "source.base",
       "adapter itself"},
      {Body({{"model", "tiny"}, {"base", "tiny"}}),
       {400, "invalid_value"},
       "source.base",
       "base must be left out"},
      {Body({{"path", "two"}, {"base", "nowhere"}}),
       {404, "path_not_found"},
       "source.base",
       "nowhere"},
      {Body({{"path", "two"}, {"base", "../tiny"}}), {400, "invalid_path"}, "source.base", ""},
      {with("/target/format", "tarball"), {400, "unsupported_value"}, "target.format", "hf"},
      {with("/target/dtype", "q4_0"), {400, "unsupported_value"}, "target.dtype", "f32"},
      {with("/target/rank", 4), {400, "invalid_value"}, "target.rank", "peft"},
      {with("/target/rank", 0), {400, "invalid_value"}, "target.rank", ""},
      {with("/target/format", "peft"), {400, "missing_required_parameter"}, "target.rank", "4096"},
      {with("/target/name", ".."), {400, "invalid_value"}, "target.name", ""},
      {with("/target/name", "a/b"), {400, "invalid_value"}, "target.name", ""},
      {with("/target/name", std::string(129, 'a')), {400, "invalid_value"}, "target.name", ""},
      {with("/target/name", "tiny"), {409, "already_exists"}, "target.name", "overwrite"},
      {with("/target/nam", "x"), {400, "invalid_value"}, "nam", ""},
      {with("/overwrit", true), {400, "invalid_value"}, "overwrit", ""},
      {with("/max_kl", -1), {400, "invalid_value"}, "max_kl", ""},
      {with("/max_kl", "little"), {400, "invalid_type"}, "max_kl", ""},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.body.dump());
    const auto reply = Admin("/admin/convert", each.body);
    EXPECT_EQ(Fault(reply), each.fault) << reply.body;
    const Json body = Json::parse(reply.body, nullptr, false);
    if (!body.is_object() || !body.contains("error")) continue;
    EXPECT_EQ(body["error"]["param"], each.param);
    EXPECT_NE(body["error"]["message"].get<std::string>().find(each.word), std::string::npos);
  }
  // A conversion replaces neither its source nor a folder without a model.
  Json onto_itself = Body({{"model", "style"}}, "tiny");
  onto_itself["overwrite"] = true;
  EXPECT_EQ(Fault(Admin("/admin/convert", onto_itself)), Faulty(400, "invalid_value"));
  Json onto_an_adapter = Body({{"path", "deeper"}}, "two");
  onto_an_adapter["overwrite"] = true;
  EXPECT_EQ(Fault(Admin("/admin/convert", onto_an_adapter)), Faulty(409, "already_exists"));
  EXPECT_EQ(Ask(Post("/admin/convert", Body({{"model", "style"}}).dump())).status, 401);
  EXPECT_EQ(Json::parse(AdminWithout("GET", "/admin/jobs?type=convert").body)["data"].size(), 0U);
}

}  // namespace
}  // namespace tandem::server
