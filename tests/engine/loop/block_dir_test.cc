#include "engine/loop/block_dir.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "engine/io/posix_file.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

TEST(BlockDir, IsInUseWhileAnObjectHasItOpen) {
  const tests::TemporaryDir dir;
  const std::filesystem::path path = dir.path() / "blocks";
  EXPECT_FALSE(BlockDir::IsInUse(path)) << "it does not exist";
  auto one = std::make_unique<BlockDir>(path);
  auto two = std::make_unique<BlockDir>(path);
  EXPECT_TRUE(BlockDir::IsInUse(path));
  one.reset();
  EXPECT_TRUE(BlockDir::IsInUse(path));
  EXPECT_FALSE(BlockDir::RemoveIfUnused(path));
  two.reset();
  EXPECT_FALSE(BlockDir::IsInUse(path));
  EXPECT_TRUE(BlockDir::RemoveIfUnused(path));
}

TEST(BlockDir, WhatIsNoDirectoryIsNotInUse) {
  const tests::TemporaryDir dir;
  const std::filesystem::path file = dir.path() / "file";
  std::ofstream(file) << "x";
  std::filesystem::create_directory(dir.path() / "dir");
  std::filesystem::create_directory_symlink(dir.path() / "dir", dir.path() / "link");

  EXPECT_FALSE(BlockDir::IsInUse(file));
  EXPECT_FALSE(BlockDir::IsInUse(dir.path() / "link"));
}

// Otherwise a server that is short of descriptors would take the others' shares.
TEST(BlockDir, WhatCannotBeOpenedCountsAsInUse) {
  const tests::TemporaryDir dir;
  const BlockDir blocks(dir.path() / "blocks");
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  const bool is_in_use = BlockDir::IsInUse(blocks.path());
  ::setrlimit(RLIMIT_NOFILE, &before);

  EXPECT_TRUE(is_in_use);
}

// A remover holds this lock for seconds, and a server that counts it would halve its share.
TEST(BlockDir, AProcessThatRemovesItIsNoUser) {
  const tests::TemporaryDir dir;
  const FileDescriptor remover(::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(remover.get(), LOCK_EX | LOCK_NB), 0);

  EXPECT_FALSE(BlockDir::IsInUse(dir.path()));
  EXPECT_FALSE(BlockDir::RemoveIfUnused(dir.path())) << "one remover is enough";
  EXPECT_TRUE(std::filesystem::exists(dir.path()));
}

}  // namespace
}  // namespace tandem::engine
