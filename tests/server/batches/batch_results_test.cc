#include "server/batches/batch_results.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/disk_full.h"
#include "tests/support/full_disk.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

class BatchResultsTest : public testing::Test {
 protected:
  static constexpr int64_t kLines = 6;

  BatchResults Open() const { return BatchResults(path_, kLines); }
  static BatchResults::Result ResultOf(int64_t line) {
    return {.line = line,
            .is_error = line % 3 == 0,
            .usage = {.input_tokens = 10 + line,
                      .cached_tokens = line,
                      .output_tokens = 100 + line,
                      .reasoning_tokens = 1},
            .json = "{\"line\":" + std::to_string(line) + ",\"text\":\"" +
                    std::string(static_cast<size_t>(line) * 7, 'x') + "\"}"};
  }
  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // The names of all files in the directory.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  void Write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  static void ExpectResult(const BatchResults& results, int64_t line) {
    ASSERT_TRUE(results.Has(line)) << line;
    EXPECT_EQ(results.Read(line), ResultOf(line).json);
    EXPECT_EQ(results.IsError(line), ResultOf(line).is_error);
  }

  tests::TemporaryDir dir_;
  const std::filesystem::path path_ = dir_ / "b.results";
};

TEST_F(BatchResultsTest, ResultsComeBackInAnyOrderAfterAReopening) {
  const std::vector<int64_t> order = {4, 0, 5, 2};
  {
    BatchResults results = Open();
    for (const int64_t line : order) {
      results.Append(ResultOf(line));
      ExpectResult(results, line);
    }
    results.Sync();
  }
  const BatchResults results = Open();

  for (const int64_t line : order) ExpectResult(results, line);
  EXPECT_FALSE(results.Has(1));
  EXPECT_FALSE(results.Has(3));
  EXPECT_EQ(results.counts().total, kLines);
  EXPECT_EQ(results.counts().completed, 3);
  EXPECT_EQ(results.counts().failed, 1);
  EXPECT_EQ(results.usage().input_tokens, 40 + 11);
  EXPECT_EQ(results.usage().cached_tokens, 11);
  EXPECT_EQ(results.usage().output_tokens, 400 + 11);
  EXPECT_EQ(results.usage().reasoning_tokens, 4);
}

// Every cut of the file: whole records stay, the rest runs again, and the result is the same file.
TEST_F(BatchResultsTest, AFileCutAnywhereKeepsItsWholeRecordsAndTakesTheOthersAgain) {
  std::vector<size_t> ends;
  {
    BatchResults results = Open();
    for (int64_t line = 0; line < 4; ++line) {
      results.Append(ResultOf(line));
      ends.push_back(Bytes().size());
    }
  }
  const std::string whole = Bytes();
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    Write(whole.substr(0, cut));
    BatchResults results = Open();
    for (int64_t line = 0; line < 4; ++line) {
      const bool is_whole = ends[static_cast<size_t>(line)] <= cut;
      ASSERT_EQ(results.Has(line), is_whole) << "cut at " << cut << ", line " << line;
      if (is_whole) {
        ExpectResult(results, line);
      } else {
        results.Append(ResultOf(line));
      }
    }
    ASSERT_EQ(Bytes(), whole) << "cut at " << cut;
  }
}

TEST_F(BatchResultsTest, AChangedByteEndsTheWholeRecords) {
  size_t first_end = 0;
  {
    BatchResults results = Open();
    results.Append(ResultOf(1));
    first_end = Bytes().size();
    results.Append(ResultOf(2));
  }
  const std::string whole = Bytes();
  for (size_t at = first_end; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    Write(changed);
    const BatchResults results = Open();
    ASSERT_TRUE(results.Has(1));
    ASSERT_FALSE(results.Has(2)) << "changed at " << at;
    ASSERT_EQ(Bytes().size(), first_end);
  }
}

TEST_F(BatchResultsTest, RecordsOfLinesThatTheInputLacksAreCutOff) {
  {
    BatchResults results(path_, 10);
    results.Append(ResultOf(9));
  }
  const BatchResults results = Open();
  EXPECT_EQ(results.counts().completed + results.counts().failed, 0);
  EXPECT_EQ(Bytes(), "");
}

TEST_F(BatchResultsTest, AFullDiskRefusesAResultAndTakesItLater) {
  BatchResults results = Open();
  results.Append(ResultOf(1));
  const std::string before = Bytes();
  {
    const tests::FullDisk full;
    const auto error = ErrorOf([&] { results.Append(ResultOf(2)); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), kDiskFullReason);
    EXPECT_FALSE(results.Has(2));
  }
  EXPECT_EQ(Bytes(), before);

  results.Append(ResultOf(2));
  ExpectResult(results, 1);
  ExpectResult(results, 2);
  ExpectResult(Open(), 2);
}

// Another replica that believes in a batch which it has lost writes on.
TEST_F(BatchResultsTest, ALateWriterDoesNotReachTheFileOfTheOneThatTookOver) {
  BatchResults late = Open();
  late.Append(ResultOf(1));
  BatchResults taken(path_, kLines, [] {});
  ExpectResult(taken, 1);

  late.Append(ResultOf(2));
  taken.Append(ResultOf(4));
  late.Append(ResultOf(3));

  EXPECT_EQ(Names(), std::vector<std::string>{"b.results"});
  const BatchResults again = Open();
  ExpectResult(again, 1);
  ExpectResult(again, 4);
  EXPECT_EQ(again.counts().completed + again.counts().failed, 2);
}

TEST_F(BatchResultsTest, OneThatHasLostTheBatchLeavesTheFileToItsWriter) {
  BatchResults writer = Open();
  writer.Append(ResultOf(1));

  // At its first look, and after its copy.
  for (const int n_passed : {0, 1}) {
    int n_looks = 0;
    const auto lost = ErrorOf([&] {
      BatchResults(path_, kLines, [&] {
        if (n_looks++ == n_passed) throw Error(ErrorCode::kUnavailable, "lost");
      });
    });
    EXPECT_TRUE(lost);
    EXPECT_EQ(n_looks, n_passed + 1);
    EXPECT_EQ(Names(), std::vector<std::string>{"b.results"});
  }

  writer.Append(ResultOf(2));
  const BatchResults again = Open();
  ExpectResult(again, 1);
  ExpectResult(again, 2);
}

TEST_F(BatchResultsTest, OneThatHasLostTheBatchCreatesNoFile) {
  EXPECT_TRUE(ErrorOf(
      [&] { BatchResults(path_, kLines, [] { throw Error(ErrorCode::kUnavailable, "lost"); }); }));
  EXPECT_TRUE(Names().empty());
}

}  // namespace
}  // namespace tandem::server
