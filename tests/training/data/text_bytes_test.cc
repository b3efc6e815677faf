#include "training/data/text_bytes.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "tests/support/temporary_dir.h"
#include "training/data/csv_rows.h"
#include "training/data/json_rows.h"
#include "training/data/shard_list.h"
#include "training/data/text_corpus.h"

namespace tandem::training {
namespace {

std::string Gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// With a checksum, as the zstd program writes it.
std::string Zstd(const std::string& text) {
  const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(),
                                                                   ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress2(context.get(), out.data(), out.size(), text.data(), text.size()));
  return out;
}

class TextBytesTest : public testing::Test {
 protected:
  std::filesystem::path Write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
    return dir_ / name;
  }
  std::string Fault(const std::string& bytes) {
    try {
      OpenTextBytes(Write("fault", bytes));
    } catch (const Error& error) {
      return error.what();
    }
    return "opened";
  }
  tests::TemporaryDir dir_;
};

TEST_F(TextBytesTest, UnpacksGzipAndZstdInSeveralParts) {
  std::string text;
  for (int64_t i = 0; i < 300000; ++i) text += std::to_string(i * 7919) + "\n";  // several blocks
  EXPECT_EQ(OpenTextBytes(Write("plain", text)).text, text);
  EXPECT_EQ(OpenTextBytes(Write("a.gz", Gzip(text))).text, text);
  EXPECT_EQ(OpenTextBytes(Write("b.gz", Gzip("one\n") + Gzip("") + Gzip("two\n"))).text,
            "one\ntwo\n");
  EXPECT_EQ(OpenTextBytes(Write("a.zst", Zstd(text))).text, text);
  EXPECT_EQ(OpenTextBytes(Write("b.zst", Zstd("one\n") + Zstd("two\n"))).text, "one\ntwo\n");
}

TEST_F(TextBytesTest, RefusesDamagedAndTruncatedArchives) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += std::to_string(i * 31) + " ";
  for (const bool gzip : {true, false}) {
    const std::string whole = gzip ? Gzip(text) : Zstd(text);
    EXPECT_NE(Fault(whole.substr(0, whole.size() / 2)).find("end early"), std::string::npos);
    EXPECT_NE(Fault(whole.substr(0, whole.size() - 1)).find("end early"), std::string::npos);
    std::string damaged = whole;
    for (size_t i = 40; i < 60; ++i) damaged[i] = static_cast<char>(~damaged[i]);
    EXPECT_NE(Fault(damaged).find("damaged"), std::string::npos) << Fault(damaged);
  }
  EXPECT_NE(Fault(Gzip("a") + "more").find("after its gzip data"), std::string::npos);
}

TEST_F(TextBytesTest, RowsAndTextsComeFromArchives) {
  const auto rows =
      JsonRows::Open(Write("r.jsonl.gz", Gzip("{\"text\":\"a\"}\n{\"text\":\"b\"}\n")));
  ASSERT_EQ(rows->size(), 2);
  EXPECT_EQ(rows->Read(1)["text"], "b");
  EXPECT_EQ(CsvRows::Open(Write("r.csv.zst", Zstd("text\nhello\n")))->Read(0)["text"], "hello");
  EXPECT_EQ(TextCorpus::Open(Write("t.txt.gz", Gzip("x\n--\ny\n")), "--").size(), 2);
  EXPECT_EQ(ContainerOf("a/r.csv.gz"), RowContainer::kCsv);
  EXPECT_EQ(ContainerOf("r.jsonl.zst"), RowContainer::kJson);

  std::filesystem::create_directory(dir_ / "set");
  Write("set/train-00000-of-00001.jsonl.gz", Gzip("{\"text\":\"a\"}\n"));
  EXPECT_EQ(ListShards(dir_ / "set", "train").size(), 1u);
}

}  // namespace
}  // namespace tandem::training
