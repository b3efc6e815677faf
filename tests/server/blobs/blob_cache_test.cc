#include "server/blobs/blob_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/attempt.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

class BlobCacheTest : public testing::Test {
 protected:
  static BlobCache::Fetch Writes(const std::string& text) {
    return [text](const fs::path& to) { std::ofstream(to, std::ios::binary) << text; };
  }
  static bool Always(const std::string&) { return true; }
  bool Has(const std::string& name) const { return fs::exists(dir_ / name); }

  tests::TemporaryDir dir_;
};

TEST_F(BlobCacheTest, ABlobIsFetchedOnceByAllItsReaders) {
  BlobCache cache(dir_.path(), 1000);
  std::atomic<int> n_fetches = 0;
  std::latch all_ask(8);
  std::vector<std::thread> readers;
  for (int i = 0; i < 8; ++i) {
    readers.emplace_back([&] {
      all_ask.arrive_and_wait();
      const LocalBlob blob = cache.Get("one", 5, [&](const fs::path& to) {
        ++n_fetches;
        Writes("hello")(to);
      });
      EXPECT_EQ(fs::file_size(blob.path), 5u);
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(n_fetches, 1);
}

TEST_F(BlobCacheTest, AFailedFetchLeavesNoFileAndIsTriedAgain) {
  BlobCache cache(dir_.path(), 1000);
  const auto error = ErrorOf({ErrorCode::kUnavailable}, [&] {
    cache.Get("one", 5, [](const fs::path& to) {
      Writes("hel")(to);
      throw Error(ErrorCode::kUnavailable, "the store is away");
    });
  });
  ASSERT_TRUE(error);
  EXPECT_FALSE(Has("one"));
  EXPECT_FALSE(Has("one.fetch"));
  cache.Get("one", 5, Writes("hello"));
  EXPECT_TRUE(Has("one"));
}

TEST_F(BlobCacheTest, AFileOfAnotherSizeIsFetchedAgain) {
  std::ofstream(dir_ / "one") << "hel";
  std::ofstream(dir_ / "two.fetch.incomplete") << "hel";
  BlobCache cache(dir_.path(), 1000);
  EXPECT_FALSE(Has("two.fetch.incomplete"));
  cache.Get("one", 5, Writes("hello"));
  EXPECT_EQ(fs::file_size(dir_ / "one"), 5u);
}

TEST_F(BlobCacheTest, TheLeastRecentlyUsedMakeRoomAndThePinnedStay) {
  BlobCache cache(dir_.path(), 30);
  for (const char* name : {"a", "b", "c"}) cache.Get(name, 10, Writes("0123456789"));
  cache.Get("a", 10, Writes(""));  // used again
  const LocalBlob pinned = cache.Get("b", 10, Writes(""));
  cache.MakeRoom(0, Always);
  EXPECT_TRUE(Has("a") && Has("b") && Has("c"));
  cache.MakeRoom(10, Always);
  EXPECT_TRUE(Has("a") && Has("b"));
  EXPECT_FALSE(Has("c"));
  cache.MakeRoom(30, [](const std::string& name) { return name != "a"; });
  EXPECT_TRUE(Has("a") && Has("b"));
  cache.MakeRoom(30, Always);
  EXPECT_FALSE(Has("a"));
  EXPECT_TRUE(Has("b"));
  std::ifstream in(pinned.path);
  std::string text;
  in >> text;
  EXPECT_EQ(text, "0123456789");
}

TEST_F(BlobCacheTest, FilesOfAnEarlierProcessCount) {
  std::ofstream(dir_ / "old") << "0123456789";
  BlobCache cache(dir_.path(), 15);
  cache.MakeRoom(10, Always);
  EXPECT_FALSE(Has("old"));
}

}  // namespace
}  // namespace tandem::server
