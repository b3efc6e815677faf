#include "engine/loop/block_files.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "tests/support/full_disk.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBytes = 1000;

class BlockFilesTest : public testing::Test {
 protected:
  BlockFiles::Options Options(int64_t n_files = 100) const {
    return {.dir = dir_.path() / "blocks",
            .block_bytes = kBytes,
            .limit_bytes = n_files * (kBytes + BlockFiles::kHeaderBytes)};
  }
  static BlockFiles::Name Name(int n) { return Sha256Of(std::as_bytes(std::span(&n, 1))); }
  static void Write(BlockFiles& files, int n) {
    files.Write(Name(n), [&](std::span<std::byte> to) {
      std::fill(to.begin(), to.end(), static_cast<std::byte>(n));
    });
    files.Flush();
  }
  // Whether the content is what Write(n) gave.
  static bool Reads(BlockFiles& files, int n) {
    std::vector<std::byte> bytes(kBytes);
    return files.Read(Name(n), bytes) &&
           bytes == std::vector<std::byte>(kBytes, static_cast<std::byte>(n));
  }
  fs::path PathOf(int n) const { return dir_.path() / "blocks" / ToHex(Name(n)); }

  tests::TemporaryDir dir_;
};

TEST_F(BlockFilesTest, KeepsWhatWasWrittenBeyondItsEnd) {
  {
    BlockFiles files(Options());
    EXPECT_FALSE(files.Has(Name(1)));
    Write(files, 1);
    Write(files, 2);
    EXPECT_TRUE(Reads(files, 1));
    EXPECT_EQ(files.writes_total(), 2);
  }
  BlockFiles files(Options());
  EXPECT_EQ(files.n_files(), 2);
  EXPECT_TRUE(Reads(files, 1));
  EXPECT_TRUE(Reads(files, 2));
  EXPECT_FALSE(Reads(files, 3));
  EXPECT_EQ(files.reads_total(), 2);
  const auto rights = fs::status(dir_.path() / "blocks").permissions();
  EXPECT_EQ(rights & (fs::perms::group_all | fs::perms::others_all), fs::perms::none);
}

TEST_F(BlockFilesTest, WritesANameOnce) {
  BlockFiles files(Options());
  Write(files, 1);
  bool is_filled = false;
  files.Write(Name(1), [&](std::span<std::byte>) { is_filled = true; });
  EXPECT_FALSE(is_filled);
}

TEST_F(BlockFilesTest, TheFilesUsedLeastRecentlyMakeRoom) {
  {
    BlockFiles files(Options(3));
    for (const int n : {1, 2, 3}) Write(files, n);
    EXPECT_TRUE(Reads(files, 1));
    Write(files, 4);
    EXPECT_FALSE(files.Has(Name(2)));
    EXPECT_FALSE(fs::exists(PathOf(2)));
    for (const int n : {1, 3, 4}) EXPECT_TRUE(Reads(files, n)) << n;
  }
  BlockFiles fewer(Options(1));
  EXPECT_EQ(fewer.n_files(), 1);
  int64_t left = 0;
  for (const auto& entry : fs::directory_iterator(dir_.path() / "blocks")) {
    left += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(left, 1);
}

TEST_F(BlockFilesTest, DropsEveryDamagedFile) {
  for (const int at : {0, 20, 40, 64, 500, 1063}) {
    SCOPED_TRACE(at);
    BlockFiles files(Options());
    Write(files, 1);
    {
      std::fstream file(PathOf(1), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(at);
      file.put('\x7e');
    }
    EXPECT_FALSE(Reads(files, 1));
    EXPECT_FALSE(files.Has(Name(1)));
    EXPECT_FALSE(fs::exists(PathOf(1)));
  }
  BlockFiles files(Options());
  Write(files, 1);
  fs::resize_file(PathOf(1), 700);
  EXPECT_FALSE(Reads(files, 1));
  // The content of another name, and a file that another process removed.
  Write(files, 1);
  Write(files, 2);
  fs::copy_file(PathOf(1), PathOf(2), fs::copy_options::overwrite_existing);
  EXPECT_FALSE(Reads(files, 2));
  fs::remove(PathOf(1));
  EXPECT_FALSE(Reads(files, 1));
  EXPECT_FALSE(files.Has(Name(1)));
}

TEST_F(BlockFilesTest, ListsItsOwnFilesOnly) {
  fs::create_directories(dir_.path() / "blocks" / ToHex(Name(7)));
  WriteFileAtomically(dir_.path() / "blocks" / "notes.txt", "not a block");
  WriteFileAtomically(PathOf(8), "too short");
  WriteFileAtomically(dir_.path() / "blocks" / ".writing-1-x", "left by a kill");
  BlockFiles files(Options());
  EXPECT_EQ(files.n_files(), 0);
  EXPECT_FALSE(fs::exists(dir_.path() / "blocks" / ".writing-1-x"));
  EXPECT_TRUE(fs::exists(dir_.path() / "blocks" / "notes.txt"));
  Write(files, 8);  // takes the name over
  EXPECT_TRUE(Reads(files, 8));
}

TEST_F(BlockFilesTest, AFullDiskKeepsNothingAndHarmsNothing) {
  BlockFiles files(Options());
  Write(files, 1);
  {
    const tests::FullDisk full;
    Write(files, 2);
  }
  EXPECT_FALSE(files.Has(Name(2)));
  EXPECT_TRUE(Reads(files, 1));
  Write(files, 3);  // the writer pauses
  EXPECT_FALSE(files.Has(Name(3)));
  for (const auto& entry : fs::directory_iterator(dir_.path() / "blocks")) {
    EXPECT_EQ(entry.path(), PathOf(1));
  }
}

TEST_F(BlockFilesTest, TheQueueIsBounded) {
  BlockFiles::Options options = Options();
  options.queue_bytes = 2 * kBytes;
  BlockFiles files(options);
  int filled = 0;
  // The writer takes some away meanwhile.
  for (int n = 0; n < 50; ++n) files.Write(Name(n), [&](std::span<std::byte>) { ++filled; });
  files.Flush();
  EXPECT_EQ(files.n_files(), filled);
}

TEST_F(BlockFilesTest, RefusesALimitBelowOneFileAndAPathThatIsNoDirectory) {
  EXPECT_THROW(BlockFiles{Options(0)}, Error);
  WriteFileAtomically(dir_.path() / "blocks", "a file");
  EXPECT_THROW(BlockFiles{Options()}, Error);
}

}  // namespace
}  // namespace tandem::engine
