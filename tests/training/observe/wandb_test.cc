// W&B's file of an offline run: framing, records, restarts.

#include <gtest/gtest.h>

#include <fstream>

#include "engine/io/atomic_write.h"
#include "tests/support/temporary_dir.h"
#include "training/observe/metrics.h"
#include "training/observe/wandb_file.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> RecordsIn(const std::string& file) {
  std::vector<std::string> records;
  size_t at = WandbHeader().size();
  std::string record;
  while (TakeWandbRecord(file, &at, &record)) records.push_back(record);
  return records;
}

// The bytes that W&B 0.18.7's DataStore writes for this record.
TEST(WandbFile, HasTheBytesOfWandbsOwnWriter) {
  EXPECT_EQ(WandbHeader(), std::string(":W&B\xe1\xbe\0", 7));
  const std::string frame = FrameWandbRecord("abc", 7);
  EXPECT_EQ(frame.substr(4), std::string("\x03\0\x01"
                                         "abc",
                                         6));
  EXPECT_EQ(frame.substr(0, 4), std::string("\xa9 \x9dS", 4));
}

TEST(WandbFile, RecordsOfEverySizeSurvive) {
  std::string file = WandbHeader();
  std::vector<std::string> want;
  for (const size_t size : {0, 1, 32741, 5, 32754, 100000, 7, 32747, 0, 65536}) {
    want.push_back(std::string(size, static_cast<char>('a' + want.size())));
    file += FrameWandbRecord(want.back(), file.size());
  }
  EXPECT_EQ(RecordsIn(file), want);
  for (const size_t size : {file.size() - 1, file.size() - 40000, size_t{8}, size_t{7}}) {
    const auto got = RecordsIn(file.substr(0, size));
    ASSERT_LT(got.size(), want.size());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin()));
  }
  std::string damaged = file;
  damaged[20] ^= 1;
  EXPECT_LT(RecordsIn(damaged).size(), want.size());
}

TEST(WandbFile, HistoryIsReadBack) {
  WandbHistory history;
  EXPECT_TRUE(
      DecodeWandbHistory(EncodeWandbHistory({7, {{"a", "1"}, {"_step", "7"}}}, 3), &history));
  EXPECT_EQ(history.step, 7);
  EXPECT_EQ(history.items, (WandbItems{{"a", "1"}, {"_step", "7"}}));
  EXPECT_FALSE(DecodeWandbHistory(EncodeWandbExit(0, 4), &history));
}

TEST(Wandb, ARestartKeepsTheFolderAndEveryStepOnce) {
  const tests::TemporaryDir dir;
  const auto write = [&](int64_t first, int64_t end) {
    const auto sink = MakeWandb(dir.path(), first, {"project", "name", {{"train.steps", "9"}}});
    for (int64_t step = first; step < end; ++step) {
      sink->Write({MetricsRow::Kind::kStep, step, 1e9, {{"learning/total_weights", 1.0}}});
    }
    sink->Write({MetricsRow::Kind::kBetweenSteps, end, 1e9, {{"eval/avg_loss", 2.0}}});
  };
  write(0, 6);
  write(4, 9);
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(dir.path() / "wandb")) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  ASSERT_EQ(files.size(), 1u);
  const std::string folder = files[0].parent_path().filename().string();
  EXPECT_EQ(files[0].filename(), "run-" + folder.substr(folder.size() - 8) + ".wandb");
  std::vector<int64_t> steps;
  WandbHistory history;
  for (const std::string& record : RecordsIn(engine::ReadWholeFile(files[0], 1 << 20))) {
    if (!DecodeWandbHistory(record, &history)) continue;
    if (history.items[0].first == "learning/total_weights") steps.push_back(history.step);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
}

}  // namespace
}  // namespace tandem::training
