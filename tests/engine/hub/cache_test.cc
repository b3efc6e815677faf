#include "engine/hub/cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "engine/base/error.h"
#include "engine/hub/partial_blob.h"
#include "engine/io/atomic_write.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

const std::string kCachedCommit(40, 'c');

class HubCacheTest : public testing::Test {
 protected:
  void SetUp() override { cache_.CreateFolders(); }
  void WriteBlob(const std::string& etag, const std::string& text) {
    std::ofstream(cache_.BlobPath(etag)) << text;
  }

  tests::TemporaryDir dir_;
  HubCache cache_{dir_.path(), "org/name"};
};

TEST_F(HubCacheTest, LinksAreRelativeFromAnyDepth) {
  WriteBlob("abc", "text");

  cache_.LinkFile(kCachedCommit, "config.json", "abc");
  cache_.LinkFile(kCachedCommit, "a/b/m.gguf", "abc");

  const fs::path snapshot = dir_ / "models--org--name" / "snapshots" / kCachedCommit;
  EXPECT_EQ(fs::read_symlink(snapshot / "config.json"), "../../blobs/abc");
  EXPECT_EQ(fs::read_symlink(snapshot / "a/b/m.gguf"), "../../../../blobs/abc");
  EXPECT_EQ(cache_.FileSize(kCachedCommit, "a/b/m.gguf"), 4);
}

TEST_F(HubCacheTest, AFolderThatIsALinkIsNotEntered) {
  const fs::path snapshot = cache_.SnapshotDir(kCachedCommit);
  fs::create_directories(snapshot);
  fs::create_directories(dir_ / "elsewhere");
  fs::create_directory_symlink(dir_ / "elsewhere", snapshot / "a");

  EXPECT_THROW(cache_.LinkFile(kCachedCommit, "a/m.gguf", "abc"), Error);
  EXPECT_TRUE(fs::is_empty(dir_ / "elsewhere"));
}

TEST_F(HubCacheTest, AnOldLinkIsReplaced) {
  WriteBlob("old", "1");
  WriteBlob("new", "22");
  cache_.LinkFile(kCachedCommit, "config.json", "old");

  cache_.LinkFile(kCachedCommit, "config.json", "new");

  EXPECT_EQ(cache_.FileSize(kCachedCommit, "config.json"), 2);
}

TEST_F(HubCacheTest, ALinkWithoutItsBlobIsNoFile) {
  cache_.LinkFile(kCachedCommit, "config.json", "gone");
  EXPECT_FALSE(cache_.FileSize(kCachedCommit, "config.json").has_value());
}

TEST_F(HubCacheTest, RefsHoldTheCommit) {
  EXPECT_FALSE(cache_.FindCommit("main").has_value());

  cache_.WriteRef("main", kCachedCommit);
  cache_.WriteRef("refs/pr/1", kCachedCommit);
  cache_.WriteRef(kCachedCommit, kCachedCommit);
  cache_.WriteRef(kCachedCommit, std::string(40, 'd'));

  EXPECT_EQ(ReadWholeFile(cache_.folder() / "refs" / "main", 100), kCachedCommit);
  EXPECT_EQ(cache_.FindCommit("refs/pr/1"), kCachedCommit);
  EXPECT_EQ(cache_.FindCommit(kCachedCommit), kCachedCommit);
  EXPECT_FALSE(fs::exists(cache_.folder() / "refs" / kCachedCommit));
}

TEST_F(HubCacheTest, ARefThatSaysNothingIsUnknownAndReplaced) {
  const fs::path path = cache_.folder() / "refs" / "main";
  for (const std::string& text :
       {std::string("../../.."), std::string(), kCachedCommit + kCachedCommit,
        kCachedCommit + std::string(1 << 20, ' ')}) {
    std::ofstream(path) << text;
    EXPECT_FALSE(cache_.FindCommit("main").has_value()) << text.substr(0, 100);
    cache_.WriteRef("main", kCachedCommit);
    EXPECT_EQ(cache_.FindCommit("main"), kCachedCommit);
  }
}

TEST_F(HubCacheTest, ABlobIsLockedOnce) {
  auto held = cache_.TryLockBlob("abc");
  ASSERT_TRUE(held.has_value());
  EXPECT_FALSE(cache_.TryLockBlob("abc").has_value());
  EXPECT_TRUE(cache_.TryLockBlob("def").has_value());

  held.reset();

  EXPECT_TRUE(cache_.TryLockBlob("abc").has_value());
  EXPECT_TRUE(fs::exists(dir_ / ".locks" / "models--org--name" / "abc.lock"));
}

TEST(HubEtag, BecomesAPlainName) {
  EXPECT_EQ(BlobNameOfEtag("\"abc-1\""), "abc-1");
  EXPECT_EQ(BlobNameOfEtag("W/\"abc\""), "abc");
  EXPECT_EQ(BlobNameOfEtag("abc"), "abc");
  for (const char* etag : {"", "\"\"", "\"../x\"", "\"a/b\"", "\".a\"", "\"a b\"", "a\\b",
                           "\"x.incomplete\"", "\"a\"\""}) {
    EXPECT_THROW(BlobNameOfEtag(etag), Error) << etag;
  }
  EXPECT_THROW(BlobNameOfEtag(std::string(300, 'a')), Error);
}

TEST(HubSpace, TheSumIsInTheError) {
  const tests::TemporaryDir dir;
  EXPECT_NO_THROW(CheckFreeSpace(dir.path(), 0, 0, "org/name"));
  try {
    CheckFreeSpace(dir.path(), uint64_t{1} << 60, (uint64_t{1} << 60) + (1 << 20), "org/name");
    ADD_FAILURE() << "there is no such disk";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    const std::string what = error.what();
    EXPECT_NE(what.find("org/name needs 1024.0 PiB more"), std::string::npos) << what;
    EXPECT_NE(what.find("1.0 MiB already fetched"), std::string::npos) << what;
  }
}

// ---- PartialBlob

// SHA-256 and git's hash of "hello world".
constexpr const char* kSha256 = "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9";
constexpr const char* kGitSha1 = "95d09f2b10159347eece71399a7e2e907ea3df4f";

std::span<const char> Bytes(std::string_view text) { return {text.data(), text.size()}; }

TEST(PartialBlob, IsPublishedWhenItsHashIsRight) {
  const tests::TemporaryDir dir;
  for (const auto& [hash, hex] : {std::pair(BlobIdentity::Hash::kSha256, kSha256),
                                  std::pair(BlobIdentity::Hash::kGitSha1, kGitSha1)}) {
    PartialBlob blob(dir / "x.incomplete", {"x", 11, hash, hex});
    blob.Append(Bytes("hello "));
    blob.Append(Bytes("world"));
    ASSERT_TRUE(blob.Verify()) << blob.found_hex();
    blob.Publish(dir / "x");
    EXPECT_EQ(ReadWholeFile(dir / "x", 100), "hello world");
    EXPECT_FALSE(fs::exists(dir / "x.incomplete"));
  }
}

TEST(PartialBlob, GoesOnFromWhatIsThere) {
  const tests::TemporaryDir dir;
  std::ofstream(dir / "x.incomplete") << "hello ";

  PartialBlob blob(dir / "x.incomplete", {"x", 11, BlobIdentity::Hash::kSha256, kSha256});

  EXPECT_EQ(blob.size(), 6);
  EXPECT_TRUE(blob.was_resumed());
  blob.Append(Bytes("world"));
  EXPECT_TRUE(blob.Verify());
}

TEST(PartialBlob, ReadingWhatIsThereCanBeStopped) {
  const tests::TemporaryDir dir;
  constexpr size_t kBytes = (size_t{3} << 20) + 5;
  std::ofstream(dir / "x.incomplete") << std::string(kBytes, 'x');
  const BlobIdentity identity{"x", kBytes + 1, BlobIdentity::Hash::kSha256, kSha256};

  size_t n_read = 0;
  const PartialBlob whole(dir / "x.incomplete", identity, [&](size_t n) { n_read += n; });
  EXPECT_EQ(n_read, kBytes);

  int n_calls = 0;
  const auto stop = [&](size_t) {
    if (++n_calls == 2) throw Error(ErrorCode::kCancelled, "interrupted");
  };
  EXPECT_THROW(PartialBlob(dir / "x.incomplete", identity, stop), Error);
  EXPECT_EQ(n_calls, 2);
  EXPECT_EQ(fs::file_size(dir / "x.incomplete"), kBytes);
}

TEST(PartialBlob, WrongBytesAreForgotten) {
  const tests::TemporaryDir dir;
  std::ofstream(dir / "x.incomplete") << "jello ";
  PartialBlob blob(dir / "x.incomplete", {"x", 11, BlobIdentity::Hash::kSha256, kSha256});
  blob.Append(Bytes("world"));

  EXPECT_FALSE(blob.Verify());
  EXPECT_EQ(blob.size(), 0);
  EXPECT_EQ(fs::file_size(dir / "x.incomplete"), 0);
  blob.Append(Bytes("hello world"));
  EXPECT_TRUE(blob.Verify());
}

TEST(PartialBlob, MoreThanTheBlobIsNoBeginningOfIt) {
  const tests::TemporaryDir dir;
  std::ofstream(dir / "x.incomplete") << "hello world and more";
  const PartialBlob blob(dir / "x.incomplete", {"x", 11, BlobIdentity::Hash::kSha256, kSha256});
  EXPECT_EQ(blob.size(), 0);
}

TEST(PartialBlob, DoesNotWriteThroughLinksAndPipes) {
  const tests::TemporaryDir dir;
  std::ofstream(dir / "victim") << "precious";
  fs::create_symlink(dir / "victim", dir / "x.incomplete");
  ASSERT_EQ(mkfifo((dir / "y.incomplete").c_str(), 0600), 0);
  const BlobIdentity identity{"x", 11, BlobIdentity::Hash::kSha256, kSha256};

  EXPECT_THROW(PartialBlob(dir / "x.incomplete", identity), Error);
  EXPECT_THROW(PartialBlob(dir / "y.incomplete", identity), Error);
  EXPECT_EQ(ReadWholeFile(dir / "victim", 100), "precious");
}

}  // namespace
}  // namespace tandem::engine
