// Hashes of any number of data files, and the settings that a prepared file records.

#include "training/setup/open_data.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/io/sha256.h"
#include "tests/support/temporary_dir.h"
#include "tests/training/data/chat_tokenizer.h"
#include "training/data/sample_encoder.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

// Written an hour ago, so that its hash is remembered.
fs::path WriteOld(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
  return path;
}

size_t CountOf(const fs::path& dir) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
}

TEST(HashOfFiles, MoreShardsThanCanBeMappedAtOnceHaveAHash) {
  const tests::TemporaryDir dir;
  std::ofstream(dir / "shard") << "text";
  const std::vector<fs::path> shards(70'000, dir / "shard");  // the kernel maps 65,530

  engine::Sha256 digests;
  const engine::Sha256Digest one = engine::Sha256Of(std::as_bytes(std::span("text", 4)));
  for (size_t i = 0; i < shards.size(); ++i) digests.Update(std::as_bytes(std::span(one)));
  EXPECT_EQ(HashOfFiles(shards, ""), engine::ToHex(digests.Finish()));
  EXPECT_EQ(HashOfFiles({dir / "shard"}, ""), engine::ToHex(one));
}

TEST(HashOfFiles, EveryShardIsRememberedByItself) {
  const tests::TemporaryDir dir;
  const fs::path memos = dir / "memos";
  const std::vector<fs::path> shards = {WriteOld(dir / "a", "1"), WriteOld(dir / "b", "2"),
                                        WriteOld(dir / "c", "3")};
  const std::string hash = HashOfFiles(shards, memos);

  EXPECT_EQ(CountOf(memos), 3u);
  EXPECT_EQ(HashOfFiles(shards, memos), hash);
  // Other contents that look unchanged prove that the second call reads no shard.
  const auto changed = fs::last_write_time(dir / "b");
  std::ofstream(dir / "b") << "x";
  fs::last_write_time(dir / "b", changed);
  EXPECT_EQ(HashOfFiles(shards, memos), hash);
  EXPECT_NE(HashOfFiles(shards, ""), hash);
}

TEST(TokIdentity, NamesTheVersionOfTheEncoder) {
  ModelFiles files;
  files.tokenizer = tests::ChatTokenizer();

  const std::string options = IdentityOf(TrainSpec(), files).options;

  EXPECT_NE(options.find("\"encoder_version\":" + std::to_string(kEncoderVersion)),
            std::string::npos)
      << options;
}

}  // namespace
}  // namespace tandem::training
