// Files written by pyarrow (make_fixtures.py), compared row by row with pyarrow's values.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/training/data/parquet/read_rows.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::vector<fs::path> ParquetFiles(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".parquet") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// "rows--variant.parquet" -> the rows of rows.jsonl.
std::vector<Json> ExpectedRows(const fs::path& file) {
  const std::string stem = file.stem().string();
  std::ifstream stream(file.parent_path() / (stem.substr(0, stem.find("--")) + ".jsonl"));
  EXPECT_TRUE(stream.is_open()) << file;
  std::vector<Json> rows;
  for (std::string line; std::getline(stream, line);) rows.push_back(Json::parse(line));
  return rows;
}

// Through JSON text: NaN becomes null.
Json AsText(const Json& row) { return Json::parse(row.dump()); }

TEST(ParquetFixtures, EveryRowIsWhatTheWriterHad) {
  const std::vector<fs::path> files = ParquetFiles(FixtureDir());
  ASSERT_GE(files.size(), 20u);
  for (const fs::path& path : files) {
    SCOPED_TRACE(path.filename());
    const std::vector<Json> expected = ExpectedRows(path);
    ParquetRows rows(ParquetFile::Open(path));
    ASSERT_EQ(rows.size(), static_cast<int64_t>(expected.size()));
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(AsText(rows.JsonRow(static_cast<int64_t>(i))), expected[i]) << "row " << i;
    }
  }
}

TEST(ParquetFixtures, AnyOrderAndTheSmallestCacheGiveTheSameRows) {
  const fs::path path = FixtureDir() / "chats--groups-and-pages-v1.parquet";
  const std::vector<Json> expected = ExpectedRows(path);
  ParquetOptions options;
  options.cache_bytes = 1;
  ParquetRows rows(ParquetFile::Open(path), {}, options);
  std::mt19937 random(7);
  for (int n = 0; n < 200; ++n) {
    const auto i = random() % expected.size();
    ASSERT_EQ(AsText(rows.JsonRow(static_cast<int64_t>(i))), expected[i]) << "row " << i;
  }
}

TEST(ParquetFixtures, ColumnsComeInTheOrderTheyWereAskedFor) {
  const fs::path path = FixtureDir() / "chats--groups-and-pages-v2.parquet";
  const std::vector<std::string> columns{"messages", "prompt"};
  ParquetRows rows(ParquetFile::Open(path), columns);
  const std::vector<Json> expected = ExpectedRows(path);
  for (size_t i = 0; i < expected.size(); ++i) {
    const Json row{{"messages", expected[i]["messages"]}, {"prompt", expected[i]["prompt"]}};
    ASSERT_EQ(rows.JsonRow(static_cast<int64_t>(i)), row);
  }
}

TEST(ParquetFixtures, TheSchemaIsToldInWords) {
  const auto file = ParquetFile::Open(FixtureDir() / "chat--zstd.parquet");

  EXPECT_EQ(file->column_names(), (std::vector<std::string>{"prompt", "prompt_id", "messages"}));
  EXPECT_EQ(file->DescribeColumns(),
            "prompt: string, prompt_id: string, "
            "messages: list<struct<content: string, role: string>>");
  EXPECT_EQ(file->n_rows(), 12);
}

TEST(ParquetFixtures, AColumnThatIsNotThereIsAnErrorThatNamesThoseThatAre) {
  const auto [what, code] = FaultOf(FileText(FixtureDir() / "chat--zstd.parquet"), {"text"});
  EXPECT_EQ(code, ErrorCode::kInvalidArgument);
  EXPECT_NE(what.find("no column 'text'"), std::string::npos) << what;
  EXPECT_NE(what.find("messages: list<struct<"), std::string::npos) << what;
}

struct RefusedCase {
  const char* file;
  std::vector<std::string> parts;  // of the message
};

TEST(ParquetFixtures, WhatIsNotReadIsRefusedByName) {
  const RefusedCase cases[] = {
      {"brotli", {"row group 0", "'text'", "BROTLI", "write_table"}},
      {"lz4", {"LZ4", "write_table"}},
      {"delta-binary-packed", {"'n'", "DELTA_BINARY_PACKED", "write_table"}},
      {"delta-length-byte-array", {"'text'", "DELTA_LENGTH_BYTE_ARRAY", "write_table"}},
      {"delta-byte-array", {"'text'", "DELTA_BYTE_ARRAY", "write_table"}},
      {"byte-stream-split", {"'x'", "BYTE_STREAM_SPLIT", "write_table"}},
      {"map", {"'column'", "MAP", "rewrite"}},
      {"decimal", {"'column'", "DECIMAL", "cast"}},
      {"date", {"'column'", "DATE", "cast"}},
      {"timestamp", {"'column'", "TIMESTAMP", "cast"}},
      {"int96", {"'column'", "INT96", "cast"}},
      {"time", {"'column'", "TIME", "cast"}},
      {"half", {"'column'", "FLOAT16", "cast"}},
      {"fixed-bytes", {"'column'", "FIXED_LEN_BYTE_ARRAY", "cast"}},
      {"bytes", {"row group 0", "'column'", "not text"}},
      {"encrypted-footer", {"encrypted"}},
      {"encrypted-columns", {"encrypted"}},
  };
  for (const RefusedCase& refused : cases) {
    SCOPED_TRACE(refused.file);
    const fs::path path = FixtureDir() / "refused" / (std::string(refused.file) + ".parquet");
    const auto [what, code] = FaultOf(FileText(path));
    EXPECT_EQ(code, ErrorCode::kUnsupported) << what;
    for (const std::string& part : refused.parts) {
      EXPECT_NE(what.find(part), std::string::npos) << "'" << part << "' in: " << what;
    }
  }
  EXPECT_EQ(ParquetFiles(FixtureDir() / "refused").size(), std::size(cases));
}

TEST(ParquetFixtures, AColumnThatCannotBeReadDoesNotBarTheOthers) {
  for (const char* name : {"map", "int96", "decimal", "bytes"}) {
    const fs::path path = FixtureDir() / "refused" / (std::string(name) + ".parquet");
    EXPECT_EQ(RowLines(FileText(path), {"fine"}), std::vector<std::string>{R"({"fine":"yes"})"});
  }
}

// The message of a job is one line with file, place, fault and remedy.
TEST(ParquetFixtures, ARefusalReadsAsALine) {
  const auto [what, code] = FaultOf(FileText(FixtureDir() / "refused/byte-stream-split.parquet"));
  EXPECT_EQ(what,
            "test.parquet: row group 0: column 'x': its encoding BYTE_STREAM_SPLIT is not "
            "supported; rewrite the file, for example with pyarrow.parquet.write_table(table, "
            "path, compression='zstd', use_dictionary=True)");
}

}  // namespace
}  // namespace tandem::training
