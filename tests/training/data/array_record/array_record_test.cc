#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/support/paths.h"
#include "training/data/array_record/array_record_file.h"
#include "training/data/array_record/array_record_rows.h"
#include "training/data/array_record/tensor_example.h"
#include "training/data/text_bytes.h"

namespace tandem::training {
namespace {

// The bytes of fixtures/NAME.array_record.gz, unpacked.
std::string FixtureBytes(const std::string& name) {
  const TextBytes bytes =
      OpenTextBytes(tests::SourceDir() / "tests/training/data/array_record/fixtures" /
                    (name + ".array_record.gz"));
  return std::string(bytes.text);
}

std::shared_ptr<const ArrayRecordFile> FileOf(const std::string& bytes) {
  return ArrayRecordFile::Of(std::as_bytes(std::span(bytes)), nullptr, "x.array_record");
}

// The message of the Error that reading all records throws; empty: none.
std::string FaultOf(const std::string& bytes, ErrorCode code) {
  try {
    const auto file = FileOf(bytes);
    for (int64_t i = 0; i < file->size(); ++i) file->Read(i);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

TEST(ArrayRecord, EveryRecordOfGooglesWriterIsReadInAnyOrder) {
  for (const char* name : {"zstd", "plain", "groups"}) {
    SCOPED_TRACE(name);
    const std::string bytes = FixtureBytes(name);
    const auto file = FileOf(bytes);
    ASSERT_EQ(file->size(), 40);
    for (int64_t i = 0; i < 40; ++i) {
      const int64_t at = i * 23 % 40;
      std::string text = "{\"text\": \"record " + std::to_string(at) + " ";
      for (int64_t n = 0; n < at; ++n) text += "abc";
      EXPECT_EQ(file->Read(at), text + "\"}");
    }
  }
}

TEST(ArrayRecord, ChunksThatCrossBlocksAreWhole) {
  const std::string bytes = FixtureBytes("blocks");
  ASSERT_GT(bytes.size(), 10u * 65536);
  const ArrayRecordRows rows(FileOf(bytes));

  ASSERT_EQ(rows.size(), 100);
  for (int64_t i = 0; i < 100; ++i) {
    const std::string text = rows.Read(i).at("n");
    EXPECT_EQ(text.size(), static_cast<size_t>(i * 37 * 5));
    if (i == 0) continue;
    EXPECT_EQ(text.substr(text.size() - 5), std::to_string(100000 + i).substr(1));
  }
  EXPECT_EQ(rows.Where(6), "record 7");
}

TEST(ArrayRecord, OtherCompressionsNameTheWayOut) {
  EXPECT_NE(FaultOf(FixtureBytes("brotli"), ErrorCode::kUnsupported).find("Brotli"),
            std::string::npos);
  EXPECT_NE(FaultOf(FixtureBytes("transposed"), ErrorCode::kUnsupported).find("transpose"),
            std::string::npos);
}

// Every byte that carries information is covered by a hash.
TEST(ArrayRecord, ADamagedByteIsFound) {
  const std::string whole = FixtureBytes("groups");
  for (const size_t at : {24u, 40u, 64u, 72u, 88u, 96u, 104u, 120u, 65536u + 24, 65536u + 64}) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    EXPECT_FALSE(FaultOf(bytes, ErrorCode::kDataLoss).empty()) << at;
  }
}

TEST(ArrayRecord, AFileThatWasNotFinishedIsRefused) {
  const std::string whole = FixtureBytes("zstd");
  for (const size_t n : {size_t{0}, size_t{1}, size_t{100}, size_t{65536}, whole.size() - 1}) {
    EXPECT_NE(FaultOf(whole.substr(0, n), ErrorCode::kDataLoss).find("x.array_record"),
              std::string::npos)
        << n;
  }
  EXPECT_FALSE(FaultOf(std::string(1 << 17, '\0'), ErrorCode::kDataLoss).empty());
  // Cut at a block: the last block is then one of records.
  const std::string blocks = FixtureBytes("blocks");
  EXPECT_FALSE(FaultOf(blocks.substr(0, blocks.size() - 65536), ErrorCode::kDataLoss).empty());
}

// A field of a protocol buffer with a run of bytes.
std::string BytesField(char number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

std::string Feature(const std::string& name, char kind, const std::string& list) {
  return BytesField(1, BytesField(1, name) + BytesField(2, BytesField(kind, list)));
}

nlohmann::ordered_json RowOf(const std::string& bytes) {
  return ParseTensorExample(std::as_bytes(std::span(bytes)));
}

TEST(TensorExample, FeaturesAreColumns) {
  const std::string half("\0\0\0\x3f", 4);
  const std::string example =
      BytesField(1, Feature("text", 1, BytesField(1, "hi")) +
                        Feature("words", 1, BytesField(1, "a") + BytesField(1, "b")) +
                        Feature("packed", 3, BytesField(1, "\x01\x96\x01")) +
                        Feature("plain", 3, std::string("\x08\x07", 2)) +
                        Feature("part", 2, BytesField(1, half)));

  EXPECT_EQ(RowOf(example).dump(),
            R"({"text":"hi","words":["a","b"],"packed":[1,150],"plain":7,"part":0.5})");
}

TEST(TensorExample, OtherBytesAreFaults) {
  EXPECT_THROW(RowOf("plain text"), Error);
  EXPECT_THROW(RowOf(BytesField(1, Feature("text", 1, BytesField(1, "\xff")))), Error);
  const std::string whole = BytesField(1, Feature("text", 1, BytesField(1, "hello")));
  for (size_t n = 1; n < whole.size(); ++n) EXPECT_THROW(RowOf(whole.substr(0, n)), Error) << n;
}

}  // namespace
}  // namespace tandem::training
