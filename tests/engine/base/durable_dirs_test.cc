#include "engine/base/durable_dirs.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "engine/base/error.h"
#include "tests/support/temporary_dir.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

TEST(MakeDirectories, MakesWhatIsMissing) {
  const tests::TemporaryDir dir;
  MakeDirectories(dir / "a/b/c");
  EXPECT_TRUE(fs::is_directory(dir / "a/b/c"));
  MakeDirectories(dir / "a/b/c");
  MakeDirectories(dir / "a/x/");
  EXPECT_TRUE(fs::is_directory(dir / "a/x"));
}

TEST(MakeDirectories, FollowsLinksAndKnowsRelativePaths) {
  const tests::TemporaryDir dir;
  fs::create_directory(dir / "there");
  fs::create_directory_symlink(dir / "there", dir / "link");
  MakeDirectories(dir / "link/below");
  EXPECT_TRUE(fs::is_directory(dir / "there/below"));
  const fs::path before = fs::current_path();
  fs::current_path(dir.path());
  MakeDirectories("relative/path");
  MakeDirectories("");
  fs::current_path(before);
  EXPECT_TRUE(fs::is_directory(dir / "relative/path"));
}

TEST(MakeDirectories, SaysWhatIsInTheWay) {
  const tests::TemporaryDir dir;
  std::ofstream(dir / "file") << "x";
  for (const char* path : {"file", "file/below"}) {
    try {
      MakeDirectories(dir / path);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_NE(std::string(error.what()).find("file"), std::string::npos);
    }
  }
  EXPECT_THROW(SyncDirectory(dir / "file"), Error);
  EXPECT_THROW(SyncDirectory(dir / "absent"), Error);
}

}  // namespace
}  // namespace tandem
