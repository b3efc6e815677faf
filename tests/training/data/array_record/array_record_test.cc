#include <gtest/gtest.h>
#include <zstd.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/support/paths.h"
#include "training/data/array_record/array_record_file.h"
#include "training/data/array_record/array_record_rows.h"
#include "training/data/array_record/chunk_cache.h"
#include "training/data/array_record/highway_hash.h"
#include "training/data/array_record/tensor_example.h"
#include "training/data/json_rows.h"
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

// Writes chunks as Google's writer does, with any numbers in their headers.
class Builder {
 public:
  Builder() { Chunk('s', "", 0, 0); }

  void Chunk(char type, const std::string& data, uint64_t n_records, uint64_t decoded_size) {
    const size_t begin = bytes_.size();
    std::string header;
    Number(&header, data.size(), 8);
    Number(&header, RiegeliHash(std::as_bytes(std::span(data))), 8);
    header += type;
    Number(&header, n_records, 7);
    Number(&header, decoded_size, 8);
    std::string hash;
    Number(&hash, RiegeliHash(std::as_bytes(std::span(header))), 8);
    for (const char c : hash + header + data) {
      if (bytes_.size() % kBlock == 0) bytes_.append(24, '\0');
      bytes_ += c;
    }
    if (n_records < kBlock && bytes_.size() < begin + n_records) bytes_.resize(begin + n_records);
    while (bytes_.size() % kBlock > 0 && bytes_.size() % kBlock <= 24) bytes_ += '\0';
  }

  // A chunk of uncompressed records, each shorter than 128 bytes.
  void Records(const std::vector<std::string>& records) {
    std::string sizes;
    std::string values;
    for (const std::string& record : records) {
      sizes += static_cast<char>(record.size());
      values += record;
    }
    Chunk('r', std::string{'\0', static_cast<char>(sizes.size())} + sizes + values, records.size(),
          values.size());
  }

  // A chunk without records that ends at this byte.
  void PadTo(size_t end) { Chunk('p', std::string(end - bytes_.size() - 40, '\0'), 0, 0); }

  // The file, with its last block.
  std::string Finish() {
    const size_t footer = bytes_.size();
    bytes_.resize((footer + kBlock - 1) / kBlock * kBlock);
    std::string postscript = "\x08";
    for (size_t left = footer; left > 0; left >>= 7) {
      postscript += static_cast<char>((left & 0x7F) | (left > 0x7F ? 0x80 : 0));
    }
    Records({postscript});
    bytes_.resize((bytes_.size() + kBlock - 1) / kBlock * kBlock);
    return bytes_;
  }

  size_t size() const { return bytes_.size(); }
  static constexpr size_t kBlock = 65536;

 private:
  static void Number(std::string* out, uint64_t value, int n_bytes) {
    for (int i = 0; i < n_bytes; ++i) *out += static_cast<char>(value >> (8 * i));
  }

  std::string bytes_;
};

// A zstd frame of `n` bytes of value `c`, after its size.
std::string PackedRun(uint64_t n, char c) {
  std::string size;
  for (uint64_t left = n; left > 0; left >>= 7) {
    size += static_cast<char>((left & 0x7F) | (left > 0x7F ? 0x80 : 0));
  }
  const std::string run(n, c);
  std::string packed(ZSTD_compressBound(n), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), run.data(), run.size(), 1));
  return size + packed;
}

// The data of a chunk of n records of the same size, packed by zstd.
std::string PackedRecords(uint64_t n, char record_size) {
  const std::string sizes = PackedRun(n, record_size);
  std::string data = "z";
  for (size_t left = sizes.size(); left > 0; left >>= 7) {
    data += static_cast<char>((left & 0x7F) | (left > 0x7F ? 0x80 : 0));
  }
  return data + sizes + PackedRun(n * static_cast<uint64_t>(record_size), 'x');
}

// The header's last byte is the last of a block, so the data begin after the next block's header.
TEST(ArrayRecord, AChunkWhoseDataBeginAtABlockIsRead) {
  for (const size_t before : {0u, 1u, 39u, 40u, 41u}) {
    SCOPED_TRACE(before);
    Builder builder;
    builder.PadTo(Builder::kBlock - before);
    builder.Records({"one", "two"});
    builder.Records({"three"});
    const std::string bytes = builder.Finish();
    const auto file = FileOf(bytes);
    ASSERT_EQ(file->size(), 3);
    EXPECT_EQ(file->Read(1), "two");
    EXPECT_EQ(file->Read(2), "three");
  }
}

// A chunk has as many bytes as records, and the next one may not begin in a block header.
TEST(ArrayRecord, AChunkOfManySmallRecordsIsPadded) {
  for (const uint64_t beyond : {0u, 1u, 23u, 24u, 25u}) {
    SCOPED_TRACE(beyond);
    Builder builder;
    const uint64_t n = Builder::kBlock + beyond - builder.size();
    builder.Chunk('r', PackedRecords(n, 1), n, n);
    builder.Records({"last"});
    const std::string bytes = builder.Finish();
    const auto file = FileOf(bytes);
    ASSERT_EQ(file->size(), static_cast<int64_t>(n) + 1);
    EXPECT_EQ(file->Read(static_cast<int64_t>(n) - 1), "x");
    EXPECT_EQ(file->Read(static_cast<int64_t>(n)), "last");
  }
}

TEST(ArrayRecord, NumbersThatTheFileCannotHoldAreRefusedBeforeMemoryIsTaken) {
  const auto fault = [](const std::string& data, uint64_t n_records, uint64_t decoded_size) {
    Builder builder;
    builder.Chunk('r', data, n_records, decoded_size);
    builder.Records({"last"});
    return FaultOf(builder.Finish(), ErrorCode::kDataLoss);
  };
  const uint64_t gib = uint64_t{1} << 30;
  EXPECT_NE(fault(PackedRecords(1 << 20, 0), gib, 0).find("beyond the file"), std::string::npos);
  EXPECT_NE(fault(PackedRecords(4, 1), (uint64_t{1} << 56) - 1, 4).find("beyond the file"),
            std::string::npos);
  // More sizes, or more bytes, than the header says.
  EXPECT_NE(fault(PackedRecords(1 << 20, 0), 8, 0).find("than its header says"), std::string::npos);
  EXPECT_NE(fault(PackedRecords(1 << 10, 100), 1 << 10, 100).find("than its header says"),
            std::string::npos);
  EXPECT_FALSE(fault(PackedRecords(8, 1), 8, 9).empty());
  EXPECT_FALSE(fault(PackedRecords(8, 1), 9, 8).empty());
  EXPECT_FALSE(fault(PackedRecords(8, 1), 7, 8).empty());
}

TEST(ArrayRecord, ARowHasAtMost16MiB) {
  const auto limit = static_cast<int64_t>(JsonRows::kMaxRowBytes);
  Builder builder;
  // One record: its size as a varint of 4 bytes.
  const auto record = [&](int64_t n) {
    std::string data{'\0', '\4'};
    for (int i = 0; i < 4; ++i)
      data += static_cast<char>((n >> (7 * i) & 0x7F) | (i < 3 ? 0x80 : 0));
    builder.Chunk('r', data + "{" + std::string(static_cast<size_t>(n) - 2, ' ') + "}", 1,
                  static_cast<uint64_t>(n));
  };
  record(limit);
  record(limit + 1);
  const std::string bytes = builder.Finish();
  const ArrayRecordRows rows(FileOf(bytes));
  EXPECT_TRUE(rows.Read(0).is_object());
  EXPECT_THROW(rows.Read(1), Error);
}

TEST(ChunkCache, TheChunksUsedLastStay) {
  const auto chunk = [](size_t bytes) {
    auto records = std::make_shared<ArrayRecords>();
    records->bytes.resize(bytes);
    return records;
  };
  ChunkCache cache(100);
  const int64_t a = cache.NewFile();
  const int64_t b = cache.NewFile();
  cache.Add(a, 0, chunk(40));
  cache.Add(b, 0, chunk(40));
  EXPECT_NE(cache.Find(a, 0), nullptr);
  cache.Add(a, 1, chunk(40));  // in the place of b's
  EXPECT_NE(cache.Find(a, 0), nullptr);
  EXPECT_NE(cache.Find(a, 1), nullptr);
  EXPECT_EQ(cache.Find(b, 0), nullptr);
  cache.Add(b, 7, chunk(200));  // too large, and the newest
  EXPECT_NE(cache.Find(b, 7), nullptr);
  EXPECT_EQ(cache.Find(a, 1), nullptr);
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

TEST(TensorExample, ALaterFeatureOfANameReplacesTheEarlierOne) {
  const std::string example = BytesField(1, Feature("a", 3, std::string("\x08\x01", 2)) +
                                                Feature("b", 3, std::string("\x08\x02", 2)) +
                                                Feature("a", 3, std::string("\x08\x03", 2)));
  EXPECT_EQ(RowOf(example).dump(), R"({"a":3,"b":2})");
}

TEST(TensorExample, OtherBytesAreFaults) {
  EXPECT_THROW(RowOf("plain text"), Error);
  EXPECT_THROW(RowOf(BytesField(1, Feature("text", 1, BytesField(1, "\xff")))), Error);
  const std::string whole = BytesField(1, Feature("text", 1, BytesField(1, "hello")));
  for (size_t n = 1; n < whole.size(); ++n) EXPECT_THROW(RowOf(whole.substr(0, n)), Error) << n;
}

}  // namespace
}  // namespace tandem::training
