#include "engine/loop/kv_archive.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/io/atomic_write.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlockBytes = 1000;
constexpr int64_t kArchiveFileBytes = kBlockBytes + BlockFiles::kHeaderBytes;

Sha256Digest DigestOf(int n) { return Sha256Of(std::as_bytes(std::span(&n, 1))); }

class KvArchiveTest : public testing::Test {
 protected:
  KvArchiveTest()
      : kv_({.layers = {{.key_bytes = kBlockBytes / 2, .value_bytes = kBlockBytes / 2}},
             .n_blocks = 1}) {}

  // The archive of one build of model 1.
  std::unique_ptr<KvArchive> Open(int build, int64_t n_files = 100) {
    return std::make_unique<KvArchive>(dir_.path(), KvArchive::Id{DigestOf(1), DigestOf(build)},
                                       n_files * kArchiveFileBytes, kv_);
  }
  static void Save(KvArchive& archive, int first, int n) {
    for (int i = first; i < first + n; ++i) archive.Save(DigestOf(i), 0, BlockId{0});
  }
  fs::path PathOf(int build, int model = 1) const {
    return dir_.path() /
           ("kv-" + ToHex(DigestOf(model)).substr(0, 16) + ToHex(DigestOf(build)).substr(0, 16));
  }
  void Age(const fs::path& path) const {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(24 * 15));
  }
  int64_t FilesBelow(const fs::path& path) const {
    int64_t n = 0;
    if (!fs::exists(path)) return 0;
    for (const auto& entry : fs::directory_iterator(path)) n += entry.is_regular_file() ? 1 : 0;
    return n;
  }

  tests::TemporaryDir dir_;
  KvCache kv_;
};

TEST_F(KvArchiveTest, RemovesOldDirectoriesOfOursOnly) {
  const fs::path ours = PathOf(7, 2);
  const fs::path shared = PathOf(8, 2);
  std::set<fs::path> foreign = {dir_.path() / "kv-notes", dir_.path() / "kv-",
                                fs::path(ours.string() + "0"), dir_.path() / "kv-backup-of-2025"};
  for (const fs::path& dir : foreign) fs::create_directories(dir);
  fs::create_directories(ours);
  fs::create_directories(shared);
  WriteFileAtomically(ours / ToHex(DigestOf(3)), "a block");
  WriteFileAtomically(ours / ".writing-0123456789abcdef", "half a block");
  WriteFileAtomically(shared / "letter.txt", "not ours");
  WriteFileAtomically(shared / ToHex(DigestOf(3)), "a block");
  for (const fs::path& dir : foreign) Age(dir);
  Age(ours);
  Age(shared);
  Open(1);
  for (const fs::path& dir : foreign) EXPECT_TRUE(fs::exists(dir)) << dir;
  EXPECT_FALSE(fs::exists(ours));
  EXPECT_TRUE(fs::exists(shared / "letter.txt"));
  EXPECT_FALSE(fs::exists(shared / ToHex(DigestOf(3))));
}

TEST_F(KvArchiveTest, KeepsTheDirectoryOfARunningServerAndItsOwn) {
  const auto running = Open(1);
  Save(*running, 0, 3);
  { Save(*Open(2), 0, 3); }
  Age(PathOf(1));
  Age(PathOf(2));
  Open(2);
  EXPECT_TRUE(fs::exists(PathOf(1)));
  EXPECT_EQ(FilesBelow(PathOf(2)), 3);
}

// Every build has other files, so an update would otherwise double the disk's use.
TEST_F(KvArchiveTest, TheBuildsOfAModelShareTheLimit) {
  { Save(*Open(1, 40), 0, 10); }
  { Save(*Open(2, 40), 0, 20); }
  fs::last_write_time(PathOf(1), fs::file_time_type::clock::now() - std::chrono::hours(1));
  {
    const auto archive = Open(3, 40);
    EXPECT_EQ(FilesBelow(PathOf(1)), 10);
    Save(*archive, 0, 15);
  }
  EXPECT_EQ(FilesBelow(PathOf(1)), 0) << "the build used least recently gives way";
  EXPECT_EQ(FilesBelow(PathOf(2)), 20);
  { Save(*Open(3, 40), 100, 25); }
  EXPECT_EQ(FilesBelow(PathOf(2)), 0);
  EXPECT_EQ(FilesBelow(PathOf(3)), 40);
  // Another model has its own limit.
  const KvArchive other(dir_.path(), {DigestOf(2), DigestOf(3)}, 40 * kArchiveFileBytes, kv_);
  EXPECT_EQ(FilesBelow(PathOf(3)), 40);
}

TEST_F(KvArchiveTest, BuildsThatRunAtOnceHaveEqualParts) {
  const auto one = Open(1, 32);
  { Save(*Open(2, 32), 0, 10); }
  const auto two = Open(2, 32);
  { Save(*one, 0, 1); }
  for (int i = 0; i < 40; ++i) {
    Save(*one, 2 * i, 2);
    Save(*two, 2 * i, 2);
  }
  // Each listing keeps the limit, and the writers list again after two files.
  while (one->files().n_queued() + two->files().n_queued() > 0) std::this_thread::yield();
  EXPECT_LE(one->files().n_files(), 16 + 2);
  EXPECT_LE(two->files().n_files(), 16 + 2);
}

}  // namespace
}  // namespace tandem::engine
