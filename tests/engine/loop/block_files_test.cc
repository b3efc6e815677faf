#include "engine/loop/block_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/attempt.h"
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
  int64_t FilesOnDisk() const {
    int64_t n = 0;
    for (const auto& entry : fs::directory_iterator(dir_.path() / "blocks")) {
      n += entry.is_regular_file() ? 1 : 0;
    }
    return n;
  }

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
  EXPECT_EQ(FilesOnDisk(), 1);
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

// Far faster than the writer, which creates a file for each.
TEST_F(BlockFilesTest, TheQueueIsBounded) {
  BlockFiles::Options options = Options(1000);
  options.queue_bytes = 2 * kBytes;
  BlockFiles files(options);
  int filled = 0;
  int64_t longest = 0;
  for (int n = 0; n < 1000; ++n) {
    files.Write(Name(n), [&](std::span<std::byte>) { ++filled; });
    longest = std::max(longest, files.n_queued());
  }
  files.Flush();
  EXPECT_LE(longest, 2);
  EXPECT_EQ(files.n_files(), filled);
}

// A file that cannot be read now may be whole.
TEST_F(BlockFilesTest, AnErrorOfTheSystemKeepsTheFile) {
  BlockFiles::Options options = Options();
  const auto read_without_descriptors = [&](BlockFiles& files) {
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
    const bool reads = Reads(files, 1);
    ::setrlimit(RLIMIT_NOFILE, &before);
    return reads;
  };
  {
    BlockFiles files(options);
    Write(files, 1);
    EXPECT_FALSE(read_without_descriptors(files));
    EXPECT_FALSE(files.Has(Name(1)));
    EXPECT_TRUE(fs::exists(PathOf(1)));
    EXPECT_EQ(files.n_files(), 1);  // it counts for the limit
    Write(files, 1);                // replaces it
    EXPECT_TRUE(Reads(files, 1));
  }
  options.pause = std::chrono::milliseconds(0);
  BlockFiles files(options);
  EXPECT_FALSE(read_without_descriptors(files));
  EXPECT_TRUE(files.Has(Name(1)));
  EXPECT_TRUE(Reads(files, 1));
}

TEST_F(BlockFilesTest, TwoServersOfADirectoryKeepTheLimitTogetherAndShareFiles) {
  BlockFiles one(Options(32));
  BlockFiles two(Options(32));
  for (int n = 0; n < 64; ++n) Write(n % 2 == 0 ? one : two, n);
  EXPECT_LE(FilesOnDisk(), 32 + 2 * 2);
  EXPECT_GE(FilesOnDisk(), 16);
  int n_shared = 0;
  for (int n = 1; n < 64; n += 2) n_shared += Reads(one, n) ? 1 : 0;
  EXPECT_GT(n_shared, 0);
}

TEST_F(BlockFilesTest, LeavesTemporariesOfAnotherServerAlone) {
  const fs::path temporary = dir_.path() / "blocks" / ".writing-0123456789abcdef";
  const BlockFiles one(Options());
  WriteFileAtomically(temporary, "half a block");
  const BlockFiles two(Options());
  EXPECT_TRUE(fs::exists(temporary));
}

TEST_F(BlockFilesTest, LeavesTheReserveOfTheDisk) {
  BlockFiles::Options options = Options();
  options.reserve_bytes = INT64_MAX / 2;
  BlockFiles files(options);
  Write(files, 1);
  EXPECT_EQ(files.n_files(), 0);
  EXPECT_EQ(FilesOnDisk(), 0);
}

TEST_F(BlockFilesTest, TheShareOfTheLimitCounts) {
  BlockFiles::Options options = Options(100);
  int64_t asked = 0;
  options.share = [&](int64_t own_bytes) {
    asked = own_bytes;
    return 3 * (kBytes + BlockFiles::kHeaderBytes);
  };
  {
    BlockFiles files(options);
    for (int n = 0; n < 10; ++n) Write(files, n);
    EXPECT_EQ(files.n_files(), 3);
  }
  const BlockFiles files(options);
  EXPECT_EQ(asked, 3 * (kBytes + BlockFiles::kHeaderBytes));
}

TEST_F(BlockFilesTest, RefusesALinkAndTheDirectoryOfAnotherUser) {
  fs::create_directories(dir_.path() / "elsewhere");
  fs::create_directory_symlink(dir_.path() / "elsewhere", dir_.path() / "blocks");
  EXPECT_THROW(BlockFiles{Options()}, Error);
  EXPECT_TRUE(fs::is_empty(dir_.path() / "elsewhere"));
  if (::geteuid() != 0) return;  // only root gives directories away
  fs::remove(dir_.path() / "blocks");
  fs::create_directories(dir_.path() / "blocks");
  ASSERT_EQ(::chown((dir_.path() / "blocks").c_str(), 4321, 4321), 0);
  const auto error = ErrorOf([&] { BlockFiles{Options()}; });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kPermissionDenied);
  EXPECT_NE(std::string(error->what()).find("4321"), std::string::npos) << error->what();
}

TEST_F(BlockFilesTest, RefusesALimitBelowOneFileAndAPathThatIsNoDirectory) {
  EXPECT_THROW(BlockFiles{Options(0)}, Error);
  WriteFileAtomically(dir_.path() / "blocks", "a file");
  EXPECT_THROW(BlockFiles{Options()}, Error);
}

}  // namespace
}  // namespace tandem::engine
