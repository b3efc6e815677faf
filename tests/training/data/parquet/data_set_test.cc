// Several files as one data set.

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/support/temporary_dir.h"
#include "tests/training/data/parquet/crafted_file.h"
#include "tests/training/data/parquet/read_rows.h"
#include "training/data/parquet/parquet_data_set.h"

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

using Strs = std::vector<std::string>;

// The files of a folder, sorted by name.
std::vector<fs::path> FilesIn(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
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

TEST(ParquetDataSet, RowsOfFilesFollowOneAnother) {
  tests::TemporaryDir dir;
  Write(dir / "a.parquet", FileOf("a", 2));
  Write(dir / "b.parquet", FileOf("b", 0));
  Write(dir / "c.parquet", FileOf("c", 3));
  ParquetOptions options;
  options.cache_bytes = 1;
  const auto set = ParquetDataSet::Open(FilesIn(dir.path()), {}, options);

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
  const auto set = ParquetDataSet::Open(FilesIn(dir.path()), {}, options);
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
  const std::string fault =
      FaultText(ErrorCode::kInvalidArgument, [&] { ParquetDataSet::Open(FilesIn(dir.path())); });
  EXPECT_NE(fault.find("column 'x' is of type 'int'"), std::string::npos) << fault;
}

// An unreadable column is skipped unless the caller names it.
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
