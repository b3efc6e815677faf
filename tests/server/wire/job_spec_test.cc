#include "server/wire/job_spec.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

class JobSpec : public testing::Test {
 protected:
  JobSpec() {
    for (const char* name : {"a.jsonl", "b.jsonl", "tokenizer.json"}) std::ofstream(dir_ / name);
    std::filesystem::create_directories(dir_ / "set/data");
    std::ofstream(dir_ / "set/data/train.jsonl");
  }

  Json Check(const Json& data) const {
    return CheckTrainSpec({{"steps", 1}, {"tokenizer_path", "tokenizer.json"}, {"data", data}},
                          dir_.path());
  }

  std::string Fault(const Json& data) const {
    try {
      Check(data);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  tests::TemporaryDir dir_;
};

TEST_F(JobSpec, PathsAreMadeAbsoluteInListsToo) {
  const std::string root = std::filesystem::canonical(dir_.path()).string();
  EXPECT_EQ(Check({{"train", "a.jsonl"}})["data"]["train"], root + "/a.jsonl");
  EXPECT_EQ(Check({{"train", {"b.jsonl", "a.jsonl"}}})["data"]["train"],
            (Json{root + "/b.jsonl", root + "/a.jsonl"}));
  const Json set = Check({{"hf_path", "set"}, {"train_split", "train"}, {"eval_split", "train"}});
  EXPECT_EQ(set["data"]["hf_path"], root + "/set");
}

TEST_F(JobSpec, NoPathLeavesTheRoot) {
  for (const Json& data : {
           Json{{"train", "/etc/passwd"}},
           Json{{"train", {"a.jsonl", "/etc/passwd"}}},
           Json{{"train", {"a.jsonl", "../x"}}},
           Json{{"train", "a.jsonl;/etc/passwd"}},
           Json{{"train", {"a.jsonl;/etc/passwd"}}},
           Json{{"train", {1, "/etc/passwd"}}},
           Json{{"train", {nullptr, "/etc/passwd"}}},
           Json{{"hf_path", "/etc"}},
           Json{{"train", "a.jsonl"}, {"eval", {"/etc/passwd"}}},
       }) {
    EXPECT_FALSE(Fault(data).empty()) << data;
  }
}

// A file below the root may be a client's upload.
TEST_F(JobSpec, NoLibraryOfAClientRuns) {
  const auto fault = [&](const Json& keys) {
    Json spec = {{"tokenizer_path", "tokenizer.json"}, {"data", {{"train", "a.jsonl"}}}};
    spec.update(keys);
    try {
      CheckTrainSpec(spec, dir_.path());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const Json& keys : {Json{{"train", {{"steps", 1}, {"loss_library", "b.jsonl"}}}},
                           Json{{"steps", 1}, {"train.loss_library", "b.jsonl"}}}) {
    EXPECT_NE(fault(keys).find("train.loss_library is not allowed over the API"), std::string::npos)
        << fault(keys);
  }
}

// The run would send requests from the server to any address.
TEST_F(JobSpec, NoTeacherOfAClientIsAsked) {
  try {
    CheckTrainSpec({{"kind", "train.distill"},
                    {"steps", 1},
                    {"tokenizer_path", "tokenizer.json"},
                    {"distill", {{"teacher_url", "http://10.0.0.1/v1"}}},
                    {"data", {{"train", "a.jsonl"}}}},
                   dir_.path());
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
    EXPECT_EQ(error.param(), "spec.kind");
    EXPECT_NE(std::string(error.what()).find("train.distill is not allowed over the API"),
              std::string::npos);
  }
}

TEST_F(JobSpec, NothingIsBuiltOnFilesOfTheServer) {
  const auto check = [&] {
    CheckTrainSpec({{"base_config", "a.jsonl"},
                    {"steps", 1},
                    {"tokenizer_path", "tokenizer.json"},
                    {"data", {{"train", "a.jsonl"}}}},
                   dir_.path());
  };
  EXPECT_THROW(check(), Error);
}

}  // namespace
}  // namespace tandem::server
