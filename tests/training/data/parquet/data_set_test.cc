// Several files as one data set: which they are, and their rows.

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/temporary_dir.h"
#include "tests/training/data/parquet/crafted_file.h"
#include "tests/training/data/parquet/read_rows.h"
#include "training/data/parquet/parquet_data_set.h"
#include "training/data/parquet/shard_list.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

// A file of rows {"x": "<name><i>"}.
std::string FileOf(const std::string& name, int n_rows) {
  std::string body;
  for (int i = 0; i < n_rows; ++i) body += Strings({name + std::to_string(i)});
  return CraftedFile({Root(1), Text("x", kRequired)},
                     {{.n_values = n_rows, .pages = DataPage(n_rows, body)}}, n_rows);
}

void Write(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::vector<std::string> Names(const std::vector<fs::path>& files) {
  std::vector<std::string> names;
  for (const fs::path& file : files) names.push_back(file.filename().string());
  return names;
}

template <class Action>
std::string FaultText(ErrorCode code, Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

using Strs = std::vector<std::string>;

TEST(ParquetShards, TheHubsLayoutHasSplits) {
  tests::TemporaryDir dir;
  for (const char* name : {"train_sft-00001-of-00002", "train_sft-00000-of-00002-a1b2", "test"}) {
    Write(dir / "data" / (std::string(name) + ".parquet"), FileOf("r", 1));
  }

  EXPECT_EQ(Names(ListParquetFiles(dir.path(), "train_sft")),
            (Strs{"train_sft-00000-of-00002-a1b2.parquet", "train_sft-00001-of-00002.parquet"}));
  EXPECT_EQ(Names(ListParquetFiles(dir / "data", "test")), Strs{"test.parquet"});
  const std::string fault =
      FaultText(ErrorCode::kInvalidArgument, [&] { ListParquetFiles(dir.path()); });
  EXPECT_NE(fault.find("'test, train_sft'"), std::string::npos) << fault;
  FaultText(ErrorCode::kInvalidArgument, [&] { ListParquetFiles(dir.path(), "train"); });
}

TEST(ParquetShards, FoldersOfConvertedSetsAreSplitsToo) {
  tests::TemporaryDir dir;
  Write(dir / "default/train/0001.parquet", FileOf("b", 1));
  Write(dir / "default/train/0000.parquet", FileOf("a", 1));

  EXPECT_EQ(Names(ListParquetFiles(dir.path())), (Strs{"0000.parquet", "0001.parquet"}));
  EXPECT_EQ(Names(ListParquetFiles(dir.path(), "train")), (Strs{"0000.parquet", "0001.parquet"}));
  EXPECT_EQ(Names(ListParquetFiles(dir / "default/train")), (Strs{"0000.parquet", "0001.parquet"}));
}

TEST(ParquetShards, AMissingShardIsAnError) {
  tests::TemporaryDir dir;
  Write(dir / "train-00000-of-00003.parquet", FileOf("a", 1));
  Write(dir / "train-00002-of-00003.parquet", FileOf("c", 1));
  const auto list = [&] { ListParquetFiles(dir.path()); };
  EXPECT_NE(FaultText(ErrorCode::kInvalidArgument, list).find("expected shard 1 of 3"),
            std::string::npos);

  fs::rename(dir / "train-00002-of-00003.parquet", dir / "train-00001-of-00003.parquet");
  EXPECT_NE(FaultText(ErrorCode::kInvalidArgument, list).find("there are 2 of 3"),
            std::string::npos);
}

TEST(ParquetShards, PatternsAreOfNames) {
  tests::TemporaryDir dir;
  for (const char* name : {"a-1", "a-2", "b-1", "a-10"}) {
    Write(dir / (std::string(name) + ".parquet"), FileOf("r", 1));
  }
  EXPECT_EQ(Names(ListParquetFiles(dir / "a-?.parquet")), (Strs{"a-1.parquet", "a-2.parquet"}));
  EXPECT_EQ(Names(ListParquetFiles(dir / "*-1*t")),
            (Strs{"a-1.parquet", "a-10.parquet", "b-1.parquet"}));
  FaultText(ErrorCode::kNotFound, [&] { ListParquetFiles(dir / "c*.parquet"); });
  FaultText(ErrorCode::kNotFound, [&] { ListParquetFiles(dir / "none/c*.parquet"); });
}

TEST(ParquetDataSet, RowsOfFilesFollowOneAnother) {
  tests::TemporaryDir dir;
  Write(dir / "a.parquet", FileOf("a", 2));
  Write(dir / "b.parquet", FileOf("b", 0));
  Write(dir / "c.parquet", FileOf("c", 3));
  ParquetOptions options;
  options.cache_bytes = 1;
  const auto set = ParquetDataSet::Open(ListParquetFiles(dir / "*.parquet"), {}, options);

  ASSERT_EQ(set->size(), 5);
  const char* expected[] = {"a0", "a1", "c0", "c1", "c2"};
  for (const int64_t i : {4, 0, 1, 3, 2, 0, 4}) {
    EXPECT_EQ(set->Read(i), (nlohmann::ordered_json{{"x", expected[i]}})) << i;
  }
  EXPECT_EQ(set->Where(1), "a.parquet, row 2");
  EXPECT_EQ(set->Where(2), "c.parquet, row 1");
}

TEST(ParquetDataSet, AnyThreadMayRead) {
  tests::TemporaryDir dir;
  Write(dir / "a.parquet", FileOf("a", 50));
  Write(dir / "b.parquet", FileOf("b", 50));
  ParquetOptions options;
  options.cache_bytes = 1;
  const auto set = ParquetDataSet::Open(ListParquetFiles(dir / "*.parquet"), {}, options);
  std::vector<std::thread> threads;
  std::vector<int> n_wrong(3);
  for (size_t t = 0; t < n_wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 100; ++i) {
        const std::string text = (i < 50 ? "a" : "b") + std::to_string(i % 50);
        n_wrong[t] += set->Read(i)["x"] == text ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_wrong, std::vector<int>(3));
}

TEST(ParquetDataSet, FilesOfOtherColumnsDoNotFit) {
  tests::TemporaryDir dir;
  Write(dir / "a.parquet", FileOf("a", 1));
  Write(dir / "b.parquet",
        CraftedFile({Root(1), Value("x", kRequired, 1)},
                    {{.type = 1, .n_values = 1, .pages = DataPage(1, FourBytes(7))}}, 1));
  const std::string fault = FaultText(ErrorCode::kInvalidArgument, [&] {
    ParquetDataSet::Open(ListParquetFiles(dir / "*.parquet"));
  });
  EXPECT_NE(fault.find("column 'x' is of type 'int'"), std::string::npos) << fault;
}

// What nobody named and nobody can read is left out; what is named must be readable.
TEST(ParquetDataSet, ColumnsThatCannotBeReadAreLeftOut) {
  const fs::path refused = FixtureDir() / "refused";
  for (const char* name : {"map.parquet", "bytes.parquet"}) {
    EXPECT_EQ(ParquetDataSet::Open({refused / name})->columns(), Strs{"fine"}) << name;
    const std::string fault = FaultText(ErrorCode::kUnsupported, [&] {
      ParquetDataSet::Open({refused / name}, {"column"})->Read(0);
    });
    EXPECT_NE(fault.find("'column'"), std::string::npos) << fault;
  }
  FaultText(ErrorCode::kInvalidArgument,
            [&] { ParquetDataSet::Open({refused / "brotli.parquet"}); });
}

}  // namespace
}  // namespace tandem::training
