#include "server/pipeline/state.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "engine/base/error.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

TEST(PipelineState, IsThereAgainAsItWasSet) {
  const tests::TemporaryDir dir;
  PipelineRecord record;
  record.status = PipelineRecord::Status::kDone;
  record.fingerprint = "f";
  record.stamp = "s";
  record.outputs = {{"out", "/x"}};
  record.result_json = R"({"loss":1.5})";
  record.job_dir = "/jobs/a";
  record.seconds = 2;
  PipelineState::Open(dir.path(), "p").Set("a", record);

  const PipelineState state = PipelineState::Open(dir.path(), "p");

  const PipelineRecord* is = state.Find("a");
  ASSERT_NE(is, nullptr);
  EXPECT_EQ(is->status, PipelineRecord::Status::kDone);
  EXPECT_EQ(is->fingerprint, "f");
  EXPECT_EQ(is->stamp, "s");
  EXPECT_EQ(is->outputs, record.outputs);
  EXPECT_EQ(is->result_json, record.result_json);
  EXPECT_EQ(is->seconds, 2);
  EXPECT_TRUE(state.IsOurs("/jobs/a"));
  EXPECT_FALSE(state.IsOurs("/jobs"));
  EXPECT_EQ(state.Find("b"), nullptr);
}

TEST(PipelineState, RefusesWhatIsNoneOfOurs) {
  const tests::TemporaryDir dir;
  for (const char* text : {"", "{", "[]", "{}", R"({"format":"tandem-pipeline","version":2})",
                           R"({"format":"tandem-pipeline","version":1,"jobs":[]})"}) {
    std::ofstream(dir.path() / "pipeline.json") << text;
    EXPECT_THROW(PipelineState::Open(dir.path(), "p"), Error) << text;
  }
}

TEST(Stamp, ChangesWithNamesAndSizesOfFilesAtAnyDepth) {
  const tests::TemporaryDir dir;
  fs::create_directories(dir.path() / "m" / "sub");
  std::ofstream(dir.path() / "m" / "a") << "1";
  const std::vector<fs::path> paths = {dir.path() / "m", dir.path() / "none"};
  const std::string first = StampOf(paths);
  EXPECT_EQ(StampOf(paths), first);

  std::ofstream(dir.path() / "m" / "sub" / "b") << "1";
  const std::string second = StampOf(paths);
  EXPECT_NE(second, first);
  std::ofstream(dir.path() / "m" / "sub" / "b") << "12";
  EXPECT_NE(StampOf(paths), second);
  fs::remove_all(dir.path() / "m" / "sub");
  EXPECT_EQ(StampOf(paths), first);
  std::ofstream(dir.path() / "none") << "";
  EXPECT_NE(StampOf(paths), first);
}

}  // namespace
}  // namespace tandem::server
