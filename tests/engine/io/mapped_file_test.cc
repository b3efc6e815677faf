#include "engine/io/mapped_file.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "tests/engine/io/file_helpers.h"

namespace tandem::engine {
namespace {

std::string TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, GivesTheBytesOfTheFile) {
  const TemporaryDir dir;
  WriteFile(dir / "a", "hello");

  const auto file = MappedFile::Open(dir / "a");

  EXPECT_EQ(TextOf(*file), "hello");
  EXPECT_EQ(file->path(), dir / "a");
  EXPECT_EQ(file->identity().bytes, 5);
}

TEST(MappedFile, OfAnEmptyFileHasNoBytes) {
  const TemporaryDir dir;
  WriteFile(dir / "a", "");

  EXPECT_TRUE(MappedFile::Open(dir / "a")->bytes().empty());
}

TEST(MappedFile, KeepsItsBytesWhenTheNameIsReplacedOrRemoved) {
  const TemporaryDir dir;
  WriteFile(dir / "a", "old");
  const auto file = MappedFile::Open(dir / "a");

  WriteFile(dir / "b", "new!");
  std::filesystem::rename(dir / "b", dir / "a");
  EXPECT_NE(file->CurrentIdentity(), file->identity());
  std::filesystem::remove(dir / "a");

  EXPECT_EQ(TextOf(*file), "old");
  ExpectError(ErrorCode::kNotFound, {(dir / "a").string()}, [&] { file->CurrentIdentity(); });
}

// Kilobytes of mapped files that are in this process's memory.
int64_t ResidentFileKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) return std::stoll(line.substr(8));
  }
  return -1;
}

TEST(MappedFile, WhatIsLetGoLeavesMemoryAndCanBeReadAgain) {
  constexpr size_t kBytes = size_t{64} << 20;
  const TemporaryDir dir;
  WriteFile(dir / "a", std::string(kBytes, 'x'));
  const auto file = MappedFile::Open(dir / "a");
  ASSERT_EQ(TextOf(*file), std::string(kBytes, 'x'));
  const int64_t before = ResidentFileKilobytes();

  file->LetGo(file->bytes().subspan(kBytes / 2));
  const int64_t after = ResidentFileKilobytes();
  file->LetGo({file->bytes().data() + kBytes, 1});  // not of this file

  EXPECT_LT(after, before - (int64_t{30} << 10));
  EXPECT_EQ(TextOf(*file), std::string(kBytes, 'x'));
}

TEST(MappedFile, NamesWhatItCannotOpen) {
  const TemporaryDir dir;

  ExpectError(ErrorCode::kNotFound, {(dir / "none").string(), "No such file"},
              [&] { MappedFile::Open(dir / "none"); });
  ExpectError(ErrorCode::kIo, {dir.path().string(), "Is a directory"},
              [&] { MappedFile::Open(dir.path()); });
}

// Opening a pipe that nobody writes to would wait for ever.
TEST(MappedFile, RefusesAPipeWithoutWaiting) {
  const TemporaryDir dir;
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);

  ExpectError(ErrorCode::kIo, {"pipe", "not a regular file"},
              [&] { MappedFile::Open(dir / "pipe"); });
}

}  // namespace
}  // namespace tandem::engine
