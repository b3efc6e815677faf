// Provenance records: what conversions write about their source, and how they read records of other
// programs.

#include "convert/work/provenance.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "convert/convert.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "tests/support/adapters.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_dir.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json Read(const fs::path& model) { return Json::parse(ReadProvenance(model)); }

class ProvenanceTest : public testing::Test {
 protected:
  ProvenanceTest() : pool_(2), ops_(engine::Kernels(), pool_) {}

  fs::path Make(const fs::path& source, const std::string& name, const fs::path& base = {}) {
    ConvertSpec spec;
    spec.source = source;
    spec.base = base;
    spec.target = dir_.path() / name;
    JobContext context;
    context.cache_dir = cache_.path();
    context.dir = "/jobs/job-" + name;
    Convert(spec, context, ops_);
    return spec.target;
  }
  fs::path WithRecord(const std::string& text) {
    const fs::path model = dir_.path() / "model";
    fs::create_directories(model);
    std::ofstream(model / "convert.json") << text;
    return model;
  }
  ErrorCode FaultOf(const std::string& record) {
    try {
      ReadProvenance(WithRecord(record));
    } catch (const Error& error) {
      return error.code();
    }
    ADD_FAILURE() << "was not refused";
    return ErrorCode::kInternal;
  }

  tests::TemporaryDir dir_, cache_;
  ThreadPool pool_;
  engine::OpsContext ops_;
};

TEST_F(ProvenanceTest, ParentsAreNamedByTheirContentAndChained) {
  const tests::Golden golden = tests::LoadGolden("gemma2-tiny/lora");
  const fs::path copy = Make(golden.dir, "copy");
  const fs::path merged = Make(golden.adapter_dir, "merged", copy);

  const Json first = Read(copy);
  EXPECT_EQ(first["job"], "job-copy");
  EXPECT_EQ(first["format"], "hf");
  EXPECT_EQ(first["producer"]["name"], "tandem");
  EXPECT_GT(first["created"], 1700000000);
  const auto model = engine::ModelDir::Open(copy);
  EXPECT_EQ(first["tensors"], model.tensor_names().size());
  EXPECT_EQ(first["certificate"]["max_abs_difference"], 0);
  ASSERT_EQ(first["parents"].size(), 1U);
  EXPECT_EQ(first["parents"][0]["role"], "source");
  EXPECT_EQ(first["parents"][0]["name"], "gemma2-tiny");
  EXPECT_EQ(first["parents"][0]["content_sha256"],
            engine::ModelDir::Open(golden.dir).ContentHash({}));
  EXPECT_FALSE(first["parents"][0].contains("provenance"));

  const Json second = Read(merged);
  ASSERT_EQ(second["parents"].size(), 2U);
  EXPECT_EQ(second["parents"][0]["role"], "base");
  EXPECT_EQ(second["parents"][0]["content_sha256"], model.ContentHash({}));
  EXPECT_EQ(second["parents"][0]["provenance"]["parents"], first["parents"]);
  EXPECT_EQ(second["parents"][1]["role"], "adapter");
  EXPECT_EQ(second["parents"][1]["tensors_sha256"].get<std::string>().size(), 64U);
  EXPECT_GT(second["merge"]["bound"], 0);
  // The record contains no path of this machine.
  EXPECT_EQ(engine::ReadWholeFile(merged / "convert.json", 1 << 20).find(dir_.path().string()),
            std::string::npos);
}

TEST_F(ProvenanceTest, WithoutARecordNothingIsSaid) {
  EXPECT_EQ(ReadProvenance(tests::LoadGolden("mistral-tiny").dir), "");
  EXPECT_EQ(ReadProvenance(dir_.path() / "nowhere"), "");
  // A directory with the name of the record.
  fs::create_directories(dir_.path() / "odd" / "convert.json");
  EXPECT_EQ(ReadProvenance(dir_.path() / "odd"), "");
}

TEST_F(ProvenanceTest, ADeepOrWideChainIsCut) {
  Json record = {{"format", "hf"}};
  for (int i = 0; i < 12; ++i) {
    record = {{"format", "hf"},
              {"parents", {{{"name", std::to_string(i)}, {"provenance", record}}}}};
  }
  Json level = Read(WithRecord(record.dump()));
  int depth = 1;
  while (level["parents"][0].contains("provenance")) {
    level = Json(level["parents"][0]["provenance"]);
    ++depth;
  }
  EXPECT_EQ(depth, kMostGenerations);
  EXPECT_EQ(level["parents"][0]["truncated"], true);

  Json wide = {{"parents", Json::array()}};
  for (int i = 0; i < 5000; ++i) wide["parents"].push_back({{"name", "p"}});
  const Json cut = Read(WithRecord(wide.dump()));
  EXPECT_EQ(cut["parents"].size(), static_cast<size_t>(kMostParents));
  EXPECT_EQ(cut["truncated"], true);
}

TEST_F(ProvenanceTest, OnlyWhatIsKnownIsTakenFromAnybodysRecord) {
  const std::string umlauts = [] {
    std::string text = "a";
    for (int i = 0; i < 400; ++i) text += "\xC3\xA4";
    return text;
  }();
  const Json record = {{"format", umlauts},
                       {"dtype", 5},
                       {"api_key", "secret"},
                       {"parents", {7, {{"name", Json::array()}, {"content_sha256", "x"}}}},
                       {"certificate", {{"max_kl", "small"}, {"state", "measured"}}},
                       {"merge", "yes"},
                       {"producer", Json::array()}};

  const Json read = Read(WithRecord(record.dump()));

  EXPECT_EQ(read["format"].get<std::string>().size(), 255U);  // cut between characters
  EXPECT_EQ(read["format"], umlauts.substr(0, 255));
  for (const char* name : {"dtype", "api_key", "merge", "producer"}) {
    EXPECT_FALSE(read.contains(name)) << name;
  }
  EXPECT_EQ(read["parents"], Json::array({{{"content_sha256", "x"}}}));
  EXPECT_EQ(read["certificate"], (Json{{"state", "measured"}}));
}

TEST_F(ProvenanceTest, WhatIsNoRecordIsRefusedInBoundedTime) {
  EXPECT_EQ(FaultOf("not json"), ErrorCode::kDataLoss);
  EXPECT_EQ(FaultOf("[]"), ErrorCode::kDataLoss);
  EXPECT_EQ(FaultOf(std::string(100000, '[')), ErrorCode::kDataLoss);
  EXPECT_EQ(FaultOf("{\"format\": \"" + std::string(2 << 20, 'x') + "\"}"), ErrorCode::kDataLoss);
  EXPECT_EQ(FaultOf("{\"format\": \"\xFF\"}"), ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace tandem::convert
